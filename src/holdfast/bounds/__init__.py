"""Bounds: what no perturbation in a ball can do to an embedding.

Files and folders here hold algorithms; each file in ``evaluations`` is one measure that uses bounds.
"""

from __future__ import annotations

from holdfast.bounds.lower_bounds import certified_radius as certified_radius
from holdfast.bounds.lower_bounds import lower_bound as lower_bound
from holdfast.bounds.methods.alpha import Alpha as Alpha
from holdfast.bounds.methods.alpha import SdpCrown as SdpCrown
from holdfast.bounds.methods.base import Crown as Crown
from holdfast.bounds.methods.base import Interval as Interval
from holdfast.bounds.methods.base import Method as Method
from holdfast.bounds.methods.base import read_method as read_method
from holdfast.bounds.methods.branch import Branch as Branch
from holdfast.bounds.methods.exact import Exact as Exact
from holdfast.bounds.methods.lipschitz import Lipschitz as Lipschitz
from holdfast.bounds.methods.semidefinite import Semidefinite as Semidefinite
