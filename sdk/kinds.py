"""The closed list of plugin kinds. These words are used everywhere: hooks, entry points, profiles, suites, docs."""

from typing import Final, Literal, get_args

from attrs import frozen

Kind = Literal[
    "attention",
    "allocator",
    "connector",
    "codec",
    "weights",
    "scheduler",
    "speculator",
    "model",
    "ops",
    "observer",
    "logits",
]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@frozen
class ContractVersion:
    """`major.minor` of a contract. Same major and minor not above the core's: compatible."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> "ContractVersion":
        """Read `"0.1"`. Raises ValueError on anything else."""
        major, dot, minor = text.partition(".")
        if not (dot and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
            raise ValueError(f"a contract version is written MAJOR.MINOR, not {text!r}")
        return cls(int(major), int(minor))


#: The contract versions that this SDK describes.
CONTRACTS: Final[dict[Kind, ContractVersion]] = {kind: ContractVersion(0, 1) for kind in KINDS}
