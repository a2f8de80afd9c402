"""What the classes of request bodies are built of."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Ignored = Annotated[Any, Field(description="Taken for compatibility; ignored.")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(min_length=1)]
Nothing = Annotated[list[Any], Field(max_length=0)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


def exactly(kind: type) -> BeforeValidator:
    """For literals, which take whatever is equal: `0.0` is no boolean."""

    def check(value: object) -> object:
        if type(value) is not kind:
            raise ValueError(f"expected a value of the type {kind.__name__}")
        return value

    return BeforeValidator(check)


class Strict(BaseModel):
    """Base of everything a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
