"""Requests as callers give them, checked before they enter the loop."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from tokloom.core.checks import Checks
from tokloom.core.parameters import validate
from tokloom.core.shown import shown
from tokloom.sdk import (
    ContextLengthError,
    GrammarSpec,
    ModelSpec,
    Objectives,
    PluginFault,
    Pooling,
    Request,
    RequestError,
    SamplingParams,
    Scope,
    TokenSegment,
    TraceContext,
)

if TYPE_CHECKING:
    from tokloom.core.composition import Adapter, Composition

#: longest objective or deadline, seconds
MAX_SECONDS: Final = 1e9


def admissible(request: Request, composition: "Composition") -> Request:
    """The same request with plain Python values in every field, which may then be taken on trust.

    Raises:
        RequestError: names the request, the field, its value and what is allowed.
        PluginFault: a grammar's factory raised something else.
    """
    if not isinstance(request, Request):
        raise RequestError(f"the request is {type(request).__name__}", remedy="Give a tokloom.sdk.Request")
    subject = f"request {shown(request.request_id)}"
    checks = Checks(subject)
    request_id = checks.text("request_id", request.request_id)
    spec, settings = composition.model.spec, composition.settings
    segments = _segments(request.segments, spec.vocab_size, checks)
    length = sum(len(segment.ids) for segment in segments)
    if not length:
        raise RequestError("the prompt has no tokens", subject=subject, remedy="Give at least one token")
    sampling = validate(request.sampling, spec.vocab_size, subject)
    if checks.text("task", request.task) not in ("generate", "score", "embed"):
        checks.fail("task", request.task, "generate, score or embed")
    pooling = _pooling(request, spec, checks)
    if request.task == "embed":
        _check_drawing(sampling, subject)
    if request.task == "score" and sampling.n != 1:
        checks.fail("n", sampling.n, "1, since scoring draws nothing")
    room = settings.max_model_tokens - (1 if request.task == "generate" and sampling.max_tokens else 0)
    if length > room:
        raise ContextLengthError(
            f"the prompt has {length} tokens and at most {room} fit the context",
            subject=subject,
            remedy="Shorten the prompt, or raise engine.max_model_tokens if the model allows it",
        )
    sampling = _check_plugins(sampling, composition, subject)
    return attrs.evolve(
        request,
        request_id=request_id,
        segments=segments,
        sampling=sampling,
        pooling=pooling,
        normalize=checks.flag("normalize", request.normalize),
        priority=clean_priority(request.priority, checks),
        tenant=checks.text("tenant", request.tenant),
        objectives=clean_objectives(request.objectives, checks),
        scope=_scope(request.scope, composition.adapters, checks),
        chat=checks.flag("chat", request.chat),
        trace=clean_trace(request.trace, checks),
    )


def _pooling(request: Request, spec: ModelSpec, checks: Checks) -> Pooling:
    """The pooling that applies: the one asked for, or the model's own; empty where nothing is embedded."""
    given = checks.text("pooling", request.pooling)
    if request.task != "embed":
        if given:
            checks.fail("pooling", given, "empty unless the task is embed")
        return ""
    if not spec.poolings:
        raise RequestError(
            "the model gives no embeddings",
            subject=f"request {shown(request.request_id)}",
            remedy="Use the task generate or score, or another model",
        )
    if not given:
        return spec.poolings[0]
    for name in spec.poolings:
        if given == name:
            return name
    checks.fail("pooling", given, f"what the model allows: {', '.join(spec.poolings)}")


def _check_drawing(sampling: SamplingParams, subject: str) -> None:
    """An embedding draws no token: a parameter that was set would have no effect."""
    plain = SamplingParams()
    for field in attrs.fields(SamplingParams):
        value = getattr(sampling, field.name)
        if value != getattr(plain, field.name):
            raise RequestError(
                f"{field.name} is {shown(value)} and the task is embed, which draws no token",
                subject=subject,
                remedy=f"Leave {field.name} at its default",
            )


def _segments(given: object, vocab_size: int, checks: Checks) -> tuple[TokenSegment, ...]:
    """With plain integers."""
    clean: list[TokenSegment] = []
    position = 0
    for segment in checks.items("segments", given, "a tuple of TokenSegment"):
        if not isinstance(segment, TokenSegment):
            checks.fail("segments", given, "a tuple of TokenSegment")
        ids = segment.ids
        if {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < vocab_size:
            clean.append(segment)
        else:
            clean.append(TokenSegment(_token(at, token, vocab_size, checks) for at, token in enumerate(ids, position)))
        position += len(ids)
    return tuple(clean)


def _token(position: int, token: object, vocab_size: int, checks: Checks) -> int:
    return checks.integer(f"prompt token {position}", token, 0, vocab_size - 1)


def clean_priority(given: object, checks: Checks) -> int:
    return checks.integer("priority", given, -(2**63))


def clean_objectives(given: object, checks: Checks) -> Objectives:
    if not isinstance(given, Objectives):
        checks.fail("objectives", given, "Objectives")
    seconds = {
        name: checks.number(f"objectives.{name}", value, 0.0, MAX_SECONDS, low_open=True)
        for name in ("ttft", "tpot", "deadline")
        if (value := getattr(given, name)) is not None
    }
    return Objectives(**seconds)


def clean_trace(given: object, checks: Checks) -> TraceContext | None:
    if given is not None and not isinstance(given, TraceContext):
        checks.fail("trace", given, "a TraceContext, or None")
    return given


def _scope(given: object, adapters: "Mapping[str, Adapter]", checks: Checks) -> Scope:
    if not isinstance(given, Scope):
        checks.fail("scope", given, "a Scope")
    adapter = checks.text("scope.adapter", given.adapter)
    known = [entry.info.digest for entry in adapters.values()]
    if adapter and adapter not in known:
        checks.fail("scope.adapter", adapter, f"empty, or a loaded adapter's digest: {', '.join(known) or 'none is'}")
    return Scope(
        salt=checks.text("scope.salt", given.salt),
        adapter=adapter,
        media=checks.texts("scope.media", given.media),
    )


def _check_plugins(sampling: SamplingParams, composition: "Composition", subject: str) -> SamplingParams:
    """With the offer of the grammar named, and its specification tried."""
    for name in sampling.processors:
        if name not in composition.processors:
            raise _not_allowed("processors", "logits processor", name, sorted(composition.processors), subject)
    if sampling.grammar is None:
        return sampling
    wanted = attrs.evolve(sampling.grammar, offer=_grammar_offer(sampling.grammar, composition, subject))
    spec = composition.model.spec
    try:
        composition.grammars[wanted.offer].start(wanted, spec.vocab_size, spec.eos_ids)
    except RequestError as error:
        raise RequestError(
            f"grammar: {error.message}",
            subject=subject,
            remedy=error.remedy or f"Give {shown(wanted.offer)} a specification that it takes",
        ) from error
    except Exception as error:
        raise PluginFault(f"start raised {type(error).__name__}: {error}", subject=f"logits.{wanted.offer}") from error
    return attrs.evolve(sampling, grammar=wanted)


def _grammar_offer(wanted: GrammarSpec, composition: "Composition", subject: str) -> str:
    """The offer that a specification names, or the first that takes its syntax."""
    if wanted.offer and wanted.offer not in composition.grammars:
        raise _not_allowed("grammar", "grammar", wanted.offer, sorted(composition.grammars), subject)
    takers = composition.syntaxes.get(wanted.syntax, ())
    if takers and (not wanted.offer or wanted.offer in takers):
        return wanted.offer or takers[0]
    who = shown(wanted.offer) if wanted.offer else "no grammar that the profile allows"
    allowed = [syntax for syntax, names in composition.syntaxes.items() if not wanted.offer or wanted.offer in names]
    raise RequestError(
        f"grammar: {who} takes {'no ' if wanted.offer else ''}syntax {shown(wanted.syntax)}",
        subject=subject,
        remedy=f"Allowed: {', '.join(sorted(allowed)) or 'none'}",
    )


def _not_allowed(field: str, what: str, name: str, allowed: Sequence[str], subject: str) -> RequestError:
    return RequestError(
        f"{field}: the profile allows no {what} {shown(name)}",
        subject=subject,
        remedy=f"Allowed: {', '.join(allowed) or 'none'}",
    )
