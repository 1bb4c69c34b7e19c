"""What the paper says and what we found, claim by claim: a verdict by a stated rule, with the numbers of results/.

Nothing is written by hand, so no verdict can outlive its numbers.
"""

from nsm.paper import claims_learning as learning
from nsm.paper import claims_networks as networks
from nsm.paper.findings import Findings
from nsm.paper.verdict import Verdict

#: When the rules were made and what they ask for, which a reader of verdicts must know.
RULES_WRITTEN = (
    "The rules were written before any row of a table was run, but after the percentiles and short versions of the "
    "other figures had been seen: those of covariate shift, stable weights, gradient angles and fixed precision were "
    "not blind to them, nor was that of operations to their counts. Seven were changed once results had been seen: "
    "that of the deterministic twin (a lower mean, then one lower by two standard errors; now comparable and better "
    "are judged apart, as the paper says both, data with few test inputs are not judged, and Table 1's network is), "
    "that of additive noise "
    "(it compared errors, where the paper speaks of what noise does to the scale of weights), the two of scaling "
    "(they compared networks as if they were not the same ones), that of convergence (it was judged by epochs alone, "
    "where the paper's iteration is a mini-batch), that of gradient angles (it was judged by the mean of the layers "
    "alone, at the same weights), and one half of that of covariate shift (it compared plain means). Those of a "
    "trained start, of the sigmoid network's weights and gradients and of batch normalisation were written when "
    "results had been seen. Two standard errors decide wherever errors of rows or of scaled networks are called equal "
    "or lower, and in covariate shift; stable weights, convergence, straight-through and binary networks, fixed "
    "precision, gradient angles, the sigmoid network's weights and gradients and the loss over all factors compare "
    "plain means. An interval of two standard errors to either side holds the true mean of five networks in 88 of 100 "
    "cases, of three in 82, so every difference is given with its standard error; that of single networks counts the "
    "chance of the test inputs alone, not that of training."
)

CLAIMS = (
    networks.self_normalisation, learning.covariate_shift, learning.stable_weights, learning.convergence,
    networks.better_than_stnn, networks.scaling, learning.precision, learning.angles, learning.sizes, networks.twin,
    networks.others, networks.site, networks.start, networks.additive, learning.online, networks.operations,
)  # fmt: skip


def verdicts(findings: Findings) -> list[Verdict]:
    """Every claim, judged by what was found."""
    return [claim.judge(findings) for claim in CLAIMS]
