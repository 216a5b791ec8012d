"""How a figure is printed: ours, the other's, the ratio."""

__all__ = ["report"]


def report(what: str, ours: float, other: float, unit: str, note: str = "", *, against: str = "floor") -> None:
    ratio = f"{ours / other:5.2f}x" if other > 0 else "    -"
    print(f"  {what:<46} {ours:9.3f} {unit:<8} {against} {other:9.3f} {unit:<8} {ratio}  {note}", flush=True)
