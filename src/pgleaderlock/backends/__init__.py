"""Where the lock is kept. :mod:`.base` is the seam; every other module here is one store behind it."""
