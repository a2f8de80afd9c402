"""Explanation: what was chosen, who constrained it, what was given up, and where the memory goes."""

from attrs import define, field, frozen


@frozen
class Choice:
    """A plugin in its place.

    Attributes:
        section: profile path.
        options: option -> (value as text, where it was written).
    """

    section: str
    kind: str
    plugin: str
    distribution: str
    version: str
    contract: str
    options: dict[str, tuple[str, str]] = field(factory=dict)


@frozen
class Constraint:
    """A negotiated value, and who limited it why."""

    what: str
    value: str
    by: str


@frozen
class GroupBudget:
    """One KV group's share of memory. Bytes per token over all its layers, open pool included where there is one."""

    group: int
    owner: str
    layers: int
    window: int | None
    main_format: str
    open_format: str
    bytes_per_token: int
    pages: int
    open_pages: int
    nbytes: int


@frozen
class AdapterBudget:
    """One adapter's share of memory; those with equal digests share it."""

    name: str
    digest: str
    rank: int
    targets: tuple[str, ...]
    nbytes: int


@define
class Explanation:
    """Collected while composing; `render` is what `compose --explain` prints."""

    profile: str
    choices: list[Choice] = field(factory=list)
    constraints: list[Constraint] = field(factory=list)
    downgrades: list[str] = field(factory=list)
    groups: list[GroupBudget] = field(factory=list)
    adapters: list[AdapterBudget] = field(factory=list)
    weight_bytes: int = 0
    kv_bytes: int = 0
    tokens: int = 0
    sequences: int = 0
    model: str = ""

    def note(self, what: str, value: object, by: str) -> None:
        self.constraints.append(Constraint(what, str(value), by))

    def render(self) -> str:
        """Plain text, stable for equal compositions."""
        lines = [f"profile {self.profile}, model {self.model}", "", "plugins"]
        for choice in self.choices:
            origin = f"{choice.distribution} {choice.version}, contract {choice.contract}"
            lines.append(f"  {choice.section:18} {choice.plugin:12} ({origin})")
            lines += [f"    {name} = {value}  [{source}]" for name, (value, source) in choice.options.items()]
        lines += ["", "negotiated"]
        lines += [f"  {item.what:18} {item.value:24} {item.by}" for item in self.constraints]
        lines += ["", "given up"]
        lines += [f"  {text}" for text in self.downgrades] or ["  nothing"]
        lines += ["", "memory"]
        lines.append(f"  weights            {_size(self.weight_bytes)} (estimate from the checkpoint)")
        for item in self.adapters:
            what = f"rank {item.rank}, {', '.join(item.targets)}, digest {item.digest[:12]}"
            lines.append(f"  adapter {item.name:10} {_size(item.nbytes)}: {what}")
        for group in self.groups:
            window = f", window {group.window}" if group.window is not None else ""
            opened = f" + open {group.open_format}, {group.open_pages} pages" if group.open_format else ""
            lines.append(
                f"  KV group {group.group}         {group.owner}, {group.layers} layers{window}: {group.main_format}"
                f"{opened}, {group.bytes_per_token} bytes/token, {group.pages} pages, {_size(group.nbytes)}"
            )
        per_token = sum(group.bytes_per_token for group in self.groups)
        lines.append(f"  KV in all          {_size(self.kv_bytes)}, {per_token} bytes/token")
        lines.append(f"  fits               {self.tokens} tokens, {self.sequences} sequences of the longest length")
        return "\n".join(lines)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.1f} {unit}" if unit != "B" else f"{count} B"
        value /= 1024
    raise AssertionError
