"""What the classes of request bodies are built of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Ignored = Annotated[Any, Field(description="Taken for compatibility; ignored.")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(min_length=1)]
Nothing = Annotated[list[Any], Field(max_length=0)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Strict(BaseModel):
    """Base of everything a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
