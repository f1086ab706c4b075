from __future__ import annotations

import torch

from holdfast.core.points.moments import far_out, moments, together


def test_moments_of_parts_add_up_to_those_of_all(monkeypatch):
    monkeypatch.setattr("holdfast.core.points.moments.BLOCK", 40)
    codes = 5 + torch.randn(97, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7)
    whole = moments(codes)
    centred = codes.double() - codes.double().mean(0)
    gram = centred.T @ centred
    assert torch.allclose(whole.mean, codes.double().mean(0))
    assert abs(whole.rank - float(gram.trace() ** 2 / gram.square().sum())) < 1e-9
    order = torch.randperm(97, generator=torch.Generator().manual_seed(1))
    parts = together([moments(codes, order[k::3]) for k in range(3)])
    assert abs(parts.rank - whole.rank) < 1e-9
    assert parts.count == 97
    assert torch.equal(parts.least, codes.double().amin(0))


def test_codes_that_are_one_point_are_collapsed():
    codes = torch.full((20, 3), 7.0)
    assert moments(codes).collapsed
    assert moments(codes).rank == 0
    codes[0, 0] += 0.1
    assert not moments(codes, scatter=False).collapsed


def test_codes_that_lie_far_out_are_said_and_others_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(300, 16, generator=generator)
    assert far_out(codes) == far_out(codes, centred=True) == ""
    assert far_out(codes + 5) == far_out(codes[:20]) == ""
    codes[:2] *= 30
    assert "1%" in far_out(codes)
    assert "1%" in far_out(codes + 5, centred=True)
    assert far_out(torch.zeros(5, 2)) == ""
