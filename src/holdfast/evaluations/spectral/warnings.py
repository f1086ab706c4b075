"""Whether a spectral score is finite and right, how it was computed, and what a reader must see beside it."""

from __future__ import annotations

from holdfast.core.records import Verdict
from holdfast.spectral.analysis import Spade


def verdict(scores: Spade) -> Verdict:
    """Return whether the score is finite and right, with everything about how it was computed."""
    graphs = scores.graphs
    recall = "exact" if min(graphs.recall) == 1 else f"approximate, recall {min(graphs.recall):.5f}"
    facts = {
        "samples": f"{graphs.inputs.n:,}",
        "k": str(graphs.k),
        "metric": "Euclidean",
        "neighbours": recall,
        "duplicate inputs left out": str(graphs.duplicates),
        "components of inputs and outputs": f"{graphs.inputs.components} and {graphs.outputs.components}",
    }
    if graphs.repaired:
        facts["repair"] = graphs.repaired
    if scores.split:
        status, reason = "refuted", f"Infinite: {scores.split}."
    else:
        facts["relative residual"] = f"{scores.residual:.1e}"
        assert scores.spectrum is not None
        facts["solver"] = scores.spectrum.solver
        if scores.cut:
            facts["sweep cut"] = f"{scores.cut.size:,} of {graphs.inputs.n:,} samples"
        if scores.certificate is None:
            status, reason = "unknown", "The eigenvalue converged; no factorisation proved that none is larger."
        else:
            status, reason = "proved", f"A factorisation shows that every eigenvalue is below {scores.certificate:.6g}."
    question = "Is the largest eigenvalue finite and right?"
    return Verdict.model_validate({"question": question, "status": status, "reason": reason, "witness": facts})


def spade_warnings(scores: Spade) -> tuple[str, ...]:
    """Return what a reader must see beside the numbers."""
    warnings, graphs = [], scores.graphs
    if scores.split:
        warnings.append(f"The SPADE score is infinite: {scores.split}.")
    if graphs.remark:
        warnings.append(graphs.remark)
    if graphs.repaired:
        warnings.append(f"The SPADE score answers a repaired question: {graphs.repaired}.")
    if graphs.duplicates:
        warnings.append(f"{graphs.duplicates} samples have the input of an earlier one; SPADE counts each input once.")
    if graphs.ties:
        warnings.append(
            f"{graphs.ties} samples share their output exactly with at least {graphs.k} others, so which of these are "
            "their neighbours is arbitrary: read the SPADE numbers with suspicion."
        )
    if min(graphs.recall) < 1:
        warnings.append(
            f"Neighbours are approximate (recall {min(graphs.recall):.5f}), which moves the SPADE score by percents."
        )
    return tuple(warnings)
