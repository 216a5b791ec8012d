"""No pages: this example is about what runs beside them."""

urlpatterns: list[object] = []
