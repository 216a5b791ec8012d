"""An integration whose framework is not installed says what to install."""

import importlib

import pytest

from pgleaderlock.errors import MissingExtra
from tests.support.missing_packages import without_packages


@pytest.mark.parametrize("framework", ["starlette", "apscheduler", "celery"])
def test_an_integration_without_its_framework_names_the_extra(framework: str):
    ours = f"pgleaderlock.integrations.{framework}"
    wanted = rf"need.* the package {framework}.*pip install 'pgleaderlock\[{framework}\]'"
    with without_packages(framework, imported_anew=(ours,)), pytest.raises(MissingExtra, match=wanted):
        importlib.import_module(ours)
