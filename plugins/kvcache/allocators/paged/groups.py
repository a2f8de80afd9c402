"""Groups from a layout, or the reason why the layout cannot be."""

from tokloom.plugins.kvcache.allocators.paged.pool import SUBJECT
from tokloom.plugins.kvcache.allocators.paged.tables import Group
from tokloom.sdk import CompositionError, KVLayout


def make_groups(layout: KVLayout) -> list[Group]:
    """One Group per KV group. Raises CompositionError for a layout that contradicts itself."""
    _check(layout)
    counts = zip(layout.groups, layout.main_pages, layout.open_pages, strict=True)
    return [Group(spec, main, open_) for spec, main, open_ in counts]


def _check(layout: KVLayout) -> None:
    """Refuse a layout that contradicts itself."""
    if not len(layout.groups) == len(layout.main_pages) == len(layout.open_pages):
        raise _refuse("the layout names a different number of groups and pools")
    for index, group in enumerate(layout.groups):
        if group.id != index:
            raise _refuse(f"group {group.id} stands at place {index}")
        if group.open is not None and group.open.page_tokens != group.main.page_tokens:
            raise _refuse(f"open and sealed pages of group {index} cover different numbers of tokens")
        if group.open is None and group.residual_tokens:
            raise _refuse(f"group {index} has residual tokens but no open pool to keep them in")
        if group.window is not None and group.window < 1:
            raise _refuse(f"group {index} has a window of {group.window} keys")


def _refuse(reason: str) -> CompositionError:
    return CompositionError(reason, subject=SUBJECT, remedy="Correct the codec's or the model's KV groups")
