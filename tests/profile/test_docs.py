"""The reference in docs/profiles.md is what the code says."""

from pathlib import Path

import attrs
import pytest

from tokloom.core.profile.schema import EngineSection, ModelSection
from tokloom.core.profile.types import AutoByteSize, AutoInt

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", [ModelSection, EngineSection])
def test_every_key_is_documented_with_its_default_and_help(section: type) -> None:
    for field in attrs.fields(section):
        default = "auto" if field.type in (AutoInt, AutoByteSize) else field.default
        cell = f" {default} " if default != "" else " "
        assert f"| `{field.name}` |{cell}| {field.metadata['help']} |" in PAGE, field.name
