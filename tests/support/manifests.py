"""The manifests of ``deploy/``: the kustomize base, and the chart as Helm rendered it (``tests/support/helm.py``)."""

from pathlib import Path
from typing import Any

import yaml

__all__ = ["BASE", "RENDERED", "Manifests", "manifests"]

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "kustomize" / "base"
RENDERED = ROOT / "tests" / "deploy" / "rendered"
NAMES = ("kustomize", "sidecar", "native", "exec", "database")

Object = dict[str, Any]


class Manifests:
    """All objects of one installation."""

    def __init__(self, text: str) -> None:
        self.objects: list[Object] = [each for each in yaml.safe_load_all(text) if each]

    def kind(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> Object:
        (found,) = self.kind(kind)
        return found

    @property
    def pod(self) -> Object:
        """The template of the pods."""
        template: Object = self.one("Deployment")["spec"]["template"]
        return template

    @property
    def containers(self) -> dict[str, Object]:
        """Every container of a pod, by its name."""
        spec = self.pod["spec"]
        return {each["name"]: each for each in [*spec.get("initContainers", []), *spec["containers"]]}

    @property
    def command(self) -> list[str]:
        """The arguments of pgleaderlock in a pod."""
        if "sidecar" in self.containers:
            return [str(word) for word in self.containers["sidecar"]["args"]]
        program, *words = self.containers["worker"]["command"]
        assert program == "pgleaderlock"
        return [str(word) for word in words]

    def option(self, flag: str) -> str | None:
        """Return the value of an option of pgleaderlock in a pod."""
        return next((word.partition("=")[2] for word in self.command if word.startswith(f"{flag}=")), None)


def manifests(name: str) -> Manifests:
    """Return the objects of the kustomize base, or of the chart with the values of this case."""
    if name != "kustomize":
        return Manifests((RENDERED / f"{name}.yaml").read_text(encoding="utf-8"))
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    return Manifests("\n---\n".join((BASE / file).read_text(encoding="utf-8") for file in listed))
