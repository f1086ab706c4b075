"""The first screen: one event per row, brackets only of one event, and the words follow from the numbers."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from shlex import split

import numpy as np
import pytest

from holdfast.commands.evaluated_run import suite_of
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Findings, Result, Series, Verdict
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.store import Store
from holdfast.report.contents import Contents
from holdfast.report.files import write
from holdfast.report.gate import check, parse
from holdfast.report.notebook import Output, run_html, shown
from holdfast.report.overview.advice import advice, gate_command
from holdfast.report.overview.first_rows import GROUPS, KINDS, FirstRow, _edits, ball, check_one_event, key_of
from holdfast.report.overview.first_screen import WHOLE, FirstScreen, _lead, lines
from holdfast.report.page.page import render
from holdfast.report.printed import markdown
from tests.facts import says
from tests.report.synthetic import breakaway, ids, result, series


def kept(encoder: str, shares: dict[str, tuple[float, float]], n: int = 100, count: int = 0) -> Result:
    """A certified-breakaway result with the proved and the attacked share of images in each ball."""
    parts = []
    for radius, (proved, attacked) in shares.items():
        for quantity, share, claim, extra in (
            ("certified_nearest_neighbour_accuracy", proved, Claim.LOWER, {"method": "crown"}),
            ("attacked_nearest_neighbour_accuracy", attacked, Claim.UPPER, {"attack": "adaptive"}),
        ):
            case = {"ball": radius, "divergence": "l2", **extra}
            values = (np.arange(n) < round(share * n)).astype(float)
            parts.append(series(quantity, case, values, "share of samples", claim, "staying the nearest"))
    estimates = [summarise(part, "share", "higher") for part in parts]
    if count:
        violated = estimates[0].model_copy(
            update={"quantity": "contradictions", "value": float(count), "unit": "certificates", "series": None}
        )
        estimates.append(violated)
    findings = Findings(ids=ids(n), series=tuple(parts), estimates=tuple(estimates))
    return result("certified-breakaway", encoder, findings, ("certified_nearest_neighbour_accuracy",))


def screen(*results: Result) -> FirstScreen:
    return Contents(results, ()).first_screens[0]


def test_proof_and_attack_share_a_cell_at_the_radius_where_encoders_differ_most():
    balls = {"linf:0.05": ((0.88, 0.92), (0.24, 0.36)), "linf:0.1": ((0.04, 0.1), (0.0, 0.02))}
    first = screen(*(kept(name, {b: ends[k] for b, ends in balls.items()}) for k, name in enumerate("ab")))
    (row,) = first.rows
    assert [cell.said for cell in row.cells] == ["proved 88% · attacked 92%", "proved 24% · attacked 36%"]
    assert "12.75/255" in row.under
    assert row.key.ball == "linf:0.05"
    assert [cell.best for cell in row.cells] == [True, False]
    assert first.verdict[0].startswith("a ")
    assert says(first.verdict[0], "one robustness row")


@pytest.mark.parametrize("field", ["event", "images", "gallery", "ball", "divergence"])
def test_two_rows_of_one_title_must_speak_of_one_event(field: str):
    (row,) = screen(kept("a", {"linf:0.05": (0.5, 0.6)})).rows
    check_one_event([row, row])
    other = replace(row, key=row.key._replace(**{field: "another"}))
    with pytest.raises(HoldfastError, match=field):
        check_one_event([row, other])


def test_a_proof_above_an_attack_of_one_event_stops_the_report():
    with pytest.raises(HoldfastError, match=r"0\.6.*0\.5"):
        screen(kept("a", {"linf:0.05": (0.6, 0.5)}))


def test_the_proof_of_one_row_is_held_against_the_attack_of_another_of_its_key():
    (row,) = screen(kept("a", {"linf:0.05": (0.5, 0.9)})).rows
    (stronger,) = screen(kept("a", {"linf:0.05": (0.1, 0.4)})).rows
    with pytest.raises(HoldfastError, match=r"0\.5.*0\.4"):
        check_one_event([row, stronger])


def test_bounds_that_cross_because_of_violated_certificates_are_shown_in_red():
    first = screen(kept("a", {"linf:0.05": (0.6, 0.5)}, count=7))
    assert "7" in first.red
    assert "7 failed" in first.checks


def test_other_images_or_another_gallery_make_another_key():
    kind = next(kind for kind in KINDS if kind.evaluation == "certified-breakaway")
    one, fewer = kept("a", {"linf:0.05": (0.5, 0.6)}), kept("a", {"linf:0.05": (0.5, 0.6)}, n=50)
    assert key_of(kind, one.estimates[0], one) == key_of(kind, one.estimates[1], one)
    assert key_of(kind, one.estimates[0], one).images != key_of(kind, fewer.estimates[0], fewer).images
    kind = next(kind for kind in KINDS if kind.evaluation == "certified-radius")
    narrow = one.model_copy(update={"settings": {**one.settings, "negatives": 3}})
    assert key_of(kind, one.estimates[0], one).gallery != key_of(kind, narrow.estimates[0], narrow).gallery


def radius(encoder: str, proved: float | None, attacked: float, n: int = 60) -> list[Result]:
    """The results on the radius at which another image becomes the nearest: the attack's own, and the bracket."""
    case = {"ball": "linf:0.5", "divergence": "l2"}

    def of(quantity: str, middle: float, claim: Claim, extra: dict[str, str]) -> Series:
        values = middle * np.linspace(0.9, 1.1, n)
        return series(quantity, case | extra, values, "linf distance", claim, "smallest radius")

    attack = {"attack": "adaptive"}
    alone = of("attack_radius", attacked, Claim.UPPER, attack)
    parts = {"attack-radius": [alone]}
    if proved is not None:
        again = alone.model_copy(update={"quantity": "attacked_attack_radius"})
        parts["certified-attack-radius"] = [
            of("certified_attack_radius", proved, Claim.LOWER, {"method": "crown"}), again
        ]  # fmt: skip
    found = []
    for evaluation, both in parts.items():
        estimates = tuple(summarise(part, "median", "higher") for part in both)
        findings = Findings(ids=ids(n), series=tuple(both), estimates=estimates)
        found.append(result(evaluation, encoder, findings, tuple(e.quantity for e in estimates)))
    return found


def test_proof_and_attack_of_the_attack_radius_are_one_row():
    (row,) = screen(*radius("a", 20 / 255, 22 / 255), *radius("b", 8 / 255, 10 / 255)).rows
    assert row.kind.group == "Proved and attacked"
    both = ("proved 20/255 · attacked 22/255", "proved 8/255 · attacked 10/255")
    assert tuple(cell.said for cell in row.cells) == both
    assert [cell.best for cell in row.cells] == [True, False]
    assert row.numbers["a"].quantity == "certified_attack_radius"
    assert row.fewest == 60


def test_without_any_proof_the_attack_has_the_row():
    (row,) = screen(*radius("a", None, 22 / 255), *radius("b", None, 10 / 255)).rows
    assert row.kind.group == "Attacked"
    assert [cell.said for cell in row.cells] == ["≤ 22/255", "≤ 10/255"]
    proved = screen(*radius("a", 20 / 255, 22 / 255)).rows[0]
    assert row.key == proved.key._replace(images=row.key.images)
    assert row.key == proved.key


def test_an_encoder_without_a_proof_shows_the_attack_of_the_same_event_in_the_row():
    first = screen(*radius("a", 20 / 255, 22 / 255), *radius("b", None, 30 / 255))
    (row,) = first.rows
    assert [cell.said for cell in row.cells] == ["proved 20/255 · attacked 22/255", "attacked 30/255"]
    assert row.cells[1].values == (), "no attack is compared with a proof"
    assert not any(cell.best for cell in row.cells)
    others = radius("b", None, 30 / 255, n=40)
    (row,) = screen(*radius("a", 20 / 255, 22 / 255), *others).rows
    assert row.cells[1].said == "–", "the attack is of other images"


def test_a_proved_radius_above_the_attacked_one_stops_the_report():
    with pytest.raises(HoldfastError, match="report"):
        screen(*radius("a", 22 / 255, 20 / 255))


def test_titles_are_noun_phrases_of_their_own_and_at_most_nine():
    titles = [kind.title for kind in KINDS]
    assert len(set(titles)) == len(titles) <= 9
    assert not any("?" in title for title in titles)


@pytest.mark.parametrize("ends", [(0.0, 1.0), (0.0, 0.2), (0.3, 0.3)])
def test_each_bound_stands_beside_its_word_and_no_two_numbers_look_like_an_interval(ends: tuple[float, float]):
    contents = Contents([kept("a", {"linf:0.05": ends})], ())
    first = contents.first_screens[0]
    ((cell,),) = (row.cells for row in first.rows)
    proved, attacked = (f"{end:.0%}" for end in ends)
    assert cell.parts == (("proved", proved), ("attacked", attacked))
    for text in (cell.said, markdown((), [first]), "\n".join(first.verdict)):
        assert says(text, f"proved {proved}", f"attacked {attacked}")
        assert " – " not in text
    page = render(contents)
    assert page.count('class="word"') == 2
    assert 'class="bar"' not in page, "a bar without a scale says nothing"


def test_a_check_of_gradients_that_decides_nothing_says_on_how_many_images():
    case = {"ball": "linf:0.1", "attack": "adaptive"}
    wins = series("score_only_wins", case, np.array([1.0, *[0.0] * 49]), "yes or no", Claim.ESTIMATE, "images")
    verdict = Verdict(question="Do gradients reach?", status="unknown", reason="few enough for chance")
    shares = {"linf:0.1": (0.5, 0.7)}
    found = Findings(ids=ids(50), verdicts=(verdict,), estimates=(summarise(wins, "share", "lower"),))
    unsure = screen(kept("one", shares), result("masking", "one", found, ()))
    assert says(unsure.checks, "one", "1 of 50")
    unasked = found.model_copy(update={"estimates": ()})  # one radius: not every check can be made
    assert "one" not in screen(kept("one", shares), result("masking", "one", unasked, ())).checks


def test_one_encoder_is_never_best_and_few_images_are_an_amber_line():
    first = screen(kept("a", {"linf:0.05": (0.5, 0.6)}, n=25))
    assert not any(cell.best for row in first.rows for cell in row.cells)
    assert {"25", "standard"} <= set(first.amber.split())
    assert not screen(kept("a", {"linf:0.05": (0.5, 0.6)})).amber


def test_the_next_best_may_lie_beyond_the_search():
    (row,) = screen(*(kept(name, {"linf:0.05": (0.8 - 0.3 * k, 0.9)}) for k, name in enumerate("abc"))).rows
    first, second, third = row.cells
    assert len(_lead([row], "a", "abc")) == 1
    unreached = replace(row, cells=(first, second._replace(values=(inf, inf)), third))
    assert _lead([unreached], "a", "abc") == []


def space(encoder: str, level: float) -> Result:
    """A result of geometry, which describes the embedding space."""
    values = series("rankme", {}, level + np.linspace(0, 0.01, 100), "dimensions", Claim.ESTIMATE, "dimensions")
    findings = Findings(ids=ids(100), series=(values,), estimates=(summarise(values, "mean", "higher"),))
    return result("geometry", encoder, findings, ("rankme",), questions=())


def test_a_row_of_the_embedding_space_has_no_best_encoder():
    shares = [kept(name, {"linf:0.05": (0.9 - 0.8 * k, 0.95)}) for k, name in enumerate("ab")]
    first = screen(*shares, space("a", 3.0), space("b", 9.0))
    (row,) = (row for row in first.rows if row.kind.group == "Space")
    assert [cell.best for cell in row.cells] == [False, False]
    assert not row.ranks
    assert "significant" not in row.under, "nothing was tested there"
    assert first.leader == "a"
    assert [cell.best for row in first.rows for cell in row.cells if row.kind.group != "Space"] == [True, False]


def test_the_verdict_names_the_row_that_is_tied():
    results = [kept(name, {"linf:0.05": (0.9 - 0.8 * k, 0.95)}) for k, name in enumerate("ab")]
    for name in "ab":
        part = series("impersonation_rate", {"ball": "linf:0.05", "attack": "adaptive", "divergence": "l2"},
                      np.zeros(100), "share of pairs", Claim.LOWER, "pairs")  # fmt: skip
        findings = Findings(ids=ids(100), series=(part,), estimates=(summarise(part, "share", "lower"),))
        results.append(result("impersonation", name, findings, ("impersonation_rate",), questions=()))
    first = screen(*results)
    tied = next(kind.title for kind in KINDS if kind.evaluation == "impersonation")
    assert says(first.verdict[0], "a ", "1 of 2", tied)


def test_each_baseline_has_its_own_line_in_one_cell():
    shares = [kept(name, {"linf:0.05": (0.5, 0.6)}) for name in ("a", "b", "baseline:grey", "baseline:small")]
    results = [
        each.model_copy(update={"encoder": each.encoder.model_copy(update={"source": each.encoder.name})})
        for each in shares
    ]
    first = screen(*results)
    (row,) = first.rows
    assert first.encoders == ("a", "b")
    assert first.beside(row) == [f"{name} proved 50% · attacked 60%" for name in ("grey", "small")]
    assert "<br>".join([*first.beside(row), ""]) in render(Contents(results, ()))


def test_what_the_study_found_is_written_in_the_row():
    first = screen(kept("a", {"linf:0.05": (0.5, 0.6)}))
    (row,) = first.rows
    for confirmed in (False, True):
        told = replace(first, rows=(replace(row, confirmed=confirmed),))
        html = shown(Output({"a": "red"}, screens=[told]))
        cell = html[html.index(row.title) :].partition("</th>")[0]
        assert ("predicted probe robustness" in cell) == confirmed
        assert "●" not in html


def test_equal_encoders_have_no_leader():
    first = screen(*(kept(name, {"linf:0.05": (0.5, 0.6)}) for name in "ab"))
    assert not any(cell.best for row in first.rows for cell in row.cells)
    assert not any("()" in cell.detail for row in first.rows for cell in row.cells)
    assert "difference" in first.verdict[0]
    assert len([row for row in first.rows if row.ranks]) == 1
    assert "one rows" not in first.verdict[0]


def test_terminal_lines_hold_every_encoder_and_its_number():
    printed = lines(screen(*(kept(name, {"linf:0.05": (0.1 + 0.8 * k, 0.95)}) for k, name in enumerate("ab"))))
    assert len(printed) <= 15
    assert printed[0].split() == ["a", "b"]
    assert printed[1].split()[-3:] == ["proved", "10%", "90%*"]
    assert printed[2].split() == ["attacked", "95%", "95%"]


def test_the_columns_of_terminal_and_page_have_one_order():
    shares = [kept(name, {"linf:0.05": (0.5, 0.9)}) for name in ("zebra", "ant", "moth")]
    names = ["ant", "moth", "zebra"]
    for results in (shares, shares[::-1]):
        assert list(screen(*results).encoders) == lines(screen(*results))[0].split() == names
        page = render(Contents(results, ()))
        head = page[page.index('class="first-screen"') :].partition("</thead>")[0]
        assert [cell.partition("<")[0] for cell in head.split("</i>")[1:]] == names


def test_the_terminal_keeps_one_row_of_each_heading_within_its_lines():
    first = screen(*(kept(name, {"linf:0.05": (0.1 + 0.8 * k, 0.95)}) for k, name in enumerate("ab")))
    (row,) = first.rows
    rows = tuple(replace(row, kind=replace(row.kind, group=group)) for group in GROUPS for _ in range(2))
    full = replace(first, rows=rows)
    heads = [line for line in lines(full) if line.rstrip("%*0123456789 ").endswith(("proved", "attacked"))]
    assert len(heads) == 6
    assert len([line for line in lines(full, most=WHOLE) if "attacked" in line and "%" in line]) == WHOLE // 2


def test_the_terminal_says_by_how_much_what_is_proved_and_what_signs_mean():
    shares = [kept(name, {"linf:0.05": (0.1 + 0.8 * k, 0.95)}) for k, name in enumerate("ab")]
    found = screen(*shares)
    said = lines(found)
    assert found.verdict[1] in said
    assert says(found.verdict[1], "90%", "10%", "12.75/255")
    (signs,) = [line for line in said if "*" in line and "95%)" in line]
    assert "≤" not in signs, "no cell has it"
    full = replace(
        found, rows=found.rows * 9, red="Violated.", amber="Small.", verdict=("Best.", "By much.", "And more.")
    )
    assert len(lines(full)) + len(("notes", "next", "report")) <= 15


def test_the_first_section_of_the_page_says_what_to_do_next():
    found = [kept(name, {"linf:0.05": (0.1 + 0.8 * k, 0.95)}) for k, name in enumerate("ab")]
    page = render(Contents(found, ()), ["runs/demo"])
    first = page[page.index('class="first"') : page.index("</section>")]
    assert says(first, "holdfast check runs/demo", "encoder=b", 'href="#advice"')


def test_results_without_a_row_have_no_first_screen_but_a_page():
    contents = Contents([breakaway(name).model_copy(update={"questions": ()}) for name in "ab"], ())
    assert contents.first_screens == ()
    assert "First screen" not in render(contents)


def test_the_page_opens_with_the_verdict_and_folds_the_rest():
    results = [kept("a", {"linf:0.05": (0.88, 0.92)}), kept("b", {"linf:0.05": (0.24, 0.36)})]
    page = render(Contents(results, ()))
    rows: tuple[FirstRow, ...] = screen(*results).rows
    for word in (rows[0].title, "88%", "24%"):
        assert word in page
    assert page.index("88%") < page.index('id="proved-and-attacked"')


def test_radii_are_grey_levels():
    assert ball("linf:0.05") == "ε = 12.75/255"
    assert ball("linf:8/255") == "ε = 8/255"


def test_the_gate_guards_a_number_of_the_first_screen():
    results = [kept("a", {"linf:0.05": (0.88, 0.92)})]
    contents = Contents(results, ())
    name, command = gate_command(contents.tables[0], contents.groups, (), ["runs/mine"], contents.screen)
    assert name == "a"
    assert "certified-breakaway.certified_nearest_neighbour_accuracy@linf:12.75/255" in command
    gate = parse(split(command)[-1])
    assert check(gate, results, strict=True)[0].passed
    assert gate.bound <= contents.first_screens[0].numbers[0][1]["a"].low


def test_the_meta_line_names_the_suite_that_was_asked_for(tmp_path: Path):
    one = kept("a", {"linf:0.05": (0.88, 0.92)})
    assert "suite standard" in lead(write([one], [], tmp_path, suite="standard")["report.html"])
    assert "suite" not in lead(write([one], [], tmp_path)["report.html"])
    store = Store(tmp_path)
    assert suite_of(store) == ""
    store.request('{"suite": "standard"}')
    assert suite_of(store) == "standard"


def lead(page: Path) -> str:
    return page.read_text("utf-8").partition('<p class="lead">')[2].partition("</p>")[0]


def test_edits_are_named_where_there_is_room():
    assert _edits({"edits": ["jpeg", "crop"]}).endswith("jpeg, crop")
    assert _edits({"kinds": ["gaussian-noise-c"] * 15}).startswith("15 ")
    assert "gaussian" not in _edits({"kinds": ["gaussian-noise-c"] * 15})


def test_a_notebook_opens_with_the_first_screen():
    results = [kept("a", {"linf:0.05": (0.88, 0.92)}), kept("b", {"linf:0.05": (0.24, 0.36)})]
    html = run_html(results, (), "two results")
    for word in ("first-screen", screen(*results).verdict[0], "88%"):
        assert word in html


def test_advice_and_gate_follow_the_verdict_and_say_where_the_study_would_not():
    balls = {"linf:0.05": (0.88, 0.92)}
    results = [kept("a", balls), kept("b", {"linf:0.05": (0.24, 0.36)})]
    contents = Contents(results, ())
    assert contents.screen
    assert contents.screen.leader == "a"
    told = advice(contents.tables[0], contents.groups, (), ["run"], contents.screen)
    assert not any("most robust" in sentence for sentence in told), "the verdict has said it"
    assert gate_command(contents.tables[0], contents.groups, (), ["run"], contents.screen)[0] == "a"
    values = {"a": 0.1, "b": 0.6}
    for name, level in values.items():
        margin = series("adversarial_margin", {"ball": "linf:0.05", "attack": "adaptive", "divergence": "l2"},
                        level + np.linspace(0, 0.01, 100), "relative distance", Claim.UPPER, "margin")  # fmt: skip
        findings = Findings(ids=ids(100), series=(margin,), estimates=(summarise(margin, "median", "higher"),))
        results.append(result("overlap", name, findings, ("adversarial_margin",), questions=()))
    for screen_of in ("a", ""):
        both = Contents(results, ())
        assert both.screen
        now = replace(both.screen, leader=screen_of)
        told = advice(both.tables[0], both.groups, (), ["run"], now)
        (why,) = (sentence for sentence in told if "adversarial margin" in sentence and "b" in sentence.split())
        assert why
        assert gate_command(both.tables[0], both.groups, (), ["run"], now)[0] == (screen_of or "b")
