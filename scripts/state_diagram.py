"""The state diagram and the table of states as `docs/states.md` shows them. Print them again with
`python -m scripts.state_diagram`."""

from holdfast.core.refusals import Refusal
from holdfast.core.states import CLAIMS, TRANSITIONS, Status, Verb, edges

# Verbs that change a booking without changing its status.
_CHANGES = {Verb.EXTEND: "later deadline", Verb.START_PAYMENT: "new payment", Verb.TRANSFER: "new user"}


def diagram() -> str:
    """Every transition. Verbs with the same source and target share an arrow."""
    causes: dict[tuple[Status | None, Status], list[str]] = {}
    for source, target, cause in edges():
        causes.setdefault((source, target), []).append(cause)
    arrows = [f"    {source or '[*]'} --> {target}: {', '.join(verbs)}" for (source, target), verbs in causes.items()]
    ends = [f"    {status} --> [*]" for status in Status if status not in {source for source, _ in causes}]
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, *ends, "```"])


def table() -> str:
    """A row for each status and a column for each action."""
    head = ["status", "claims", *(f"`{verb}`" for verb in Verb)]
    rows = [[f"**{status}**", CLAIMS[status].value, *(_cell(status, verb) for verb in Verb)] for status in Status]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _cell(status: Status, verb: Verb) -> str:
    target = TRANSITIONS[status, verb]
    if isinstance(target, Refusal):
        return f"`{target.code}`"
    if target is status:
        return _CHANGES.get(verb, "no change")
    return f"→ {target}"


if __name__ == "__main__":
    print(f"{diagram()}\n\n{table()}")
