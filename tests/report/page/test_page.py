"""The page: it loads nothing, escapes what others wrote, and says everything that was recorded."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch

from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.core.encoder import Domain
from holdfast.core.pictures import png
from holdfast.core.records import Failure, Findings, ImagesInfo, Picture, Result
from holdfast.measure.observation import named
from holdfast.report.contents import Contents, RunState
from holdfast.report.page.page import render
from holdfast.report.text import number
from tests.facts import says
from tests.marks import rest_slow
from tests.report.synthetic import breakaway, displacement, everything, impersonation, result, warned

EVIL = "<script>alert('x')</script> & \"quotes\" `code` $x_1$"
VOID = {"meta", "img", "br", "link", "input", "hr", "path", "use"}


class Page(HTMLParser):
    """Collects elements, text and mistakes of nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words += data


@pytest.fixture(scope="module")
def whole() -> str:
    results, failures = everything()
    return render(Contents(results, failures))


def test_tags_are_closed_and_ids_distinct(whole):
    page = Page(whole)
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) > 10
    assert len(set(ids)) == len(ids)
    targets = {str(attributes.get("href")).removeprefix("#") for tag, attributes in page.elements if tag == "a"}
    assert len(targets) > 4
    assert targets <= set(ids)


def test_nothing_is_loaded_from_anywhere(whole):
    page = Page(whole)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        for key in ("src", "href", "xlink:href", "action", "srcset"):
            address = attributes.get(key)
            assert address is None or address.startswith(("#", "data:image/png;base64,")), (tag, address)
    assert not re.search(r"url\((?!#|data:image/png)|@import|https?://", whole)


def test_what_others_wrote_is_escaped():
    one = breakaway(EVIL)
    evil = one.model_copy(
        update={
            "title": EVIL,
            "meaning": EVIL,
            "settings": {EVIL: EVIL},
            "provenance": {EVIL: EVIL},
            "findings": one.findings.model_copy(update={"warnings": (EVIL,)}),
        }
    )
    failure = Failure(evaluation=EVIL, encoder=EVIL, images=EVIL, error=EVIL, reason=EVIL)
    other = breakaway("plain").model_copy(update={"settings": {EVIL: EVIL}})
    page = render(Contents([evil, other], [failure]))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 10
    assert "script" not in {tag for tag, _ in Page(page).elements}


def test_missing_values_are_undefined_with_their_reason(whole):
    words = Page(whole).words
    assert not re.search(r"\bnan\b|\bNaN\b|\bNone\b", words)
    assert words.count("undefined") > 4
    assert says(words, "images are equal")
    cells = [a for t, a in Page(whole).elements if t == "span" and a.get("class") == "undefined" and "title" in a]
    assert all(says(str(a["title"]), "images are equal") for a in cells)


def test_the_page_says_what_was_recorded(whole):
    words = Page(whole).words
    results, failures = everything()
    for said in results:
        assert said.meaning in words
        assert said.encoder.name in words
        for warning in said.findings.warnings:
            assert warning in words
    assert failures[0].reason in words
    for needed in ("lower bound", "upper bound", "estimate", "best", "Settings and provenance", "How to read this"):
        assert needed in words


def test_warnings_come_before_the_numbers(whole):
    note = whole.index("may be masked: a score-only attack")
    assert whole.index('id="attacked"') < note < whole.index('id="numbers-attacked"')


def test_the_way_from_image_to_code_is_told_and_what_is_not_known_of_it_comes_first():
    one, two = breakaway("a"), impersonation("a")
    inputs = {"normalisation": "mean 0.5, std 0.5", "pooling": "cls"}
    info = one.encoder.model_copy(update={"inputs": inputs, "warnings": ("It says nothing of normalisation.",)})
    told = [result.model_copy(update={"encoder": info}) for result in (one, two)]
    first, rest = Page(render(Contents(told, []))).words.split("Next steps", 2)[1:]
    assert first.count("It says nothing of normalisation.") == 1
    assert "normalisation: mean 0.5, std 0.5" in rest.split("What was measured")[1]
    assert "pooling: cls" in rest
    old = Page(render(Contents([one], []))).words
    assert "not recorded" in old.split("What was measured")[1]


def test_unread_images_and_a_spent_budget_are_told_with_what_to_do():
    one = breakaway("a")
    one = one.model_copy(update={"images": one.images.model_copy(update={"skipped": ("broken.png: truncated",)})})
    spent = Failure(evaluation="overlap", encoder="a", images="x", error="BudgetSpentError", reason="not run")
    words = Page(render(Contents([one], [spent]))).words
    first, facts = words.split("Next steps", 2)[1:]
    assert says(first, "1 image", "skipped")
    assert says(first, "1 result", "--budget")
    assert "broken.png: truncated" in facts.split("What was measured")[1]
    assert "mend" not in words.split()


def test_tables_and_pictures_are_accessible(whole):
    elements = Page(whole).elements
    assert all(attributes.get("scope") for tag, attributes in elements if tag == "th")
    images = [attributes for _, attributes in elements if attributes.get("role") == "img" and "class" in attributes]
    assert images
    assert all(attributes.get("aria-label") for attributes in images)
    drawings = [attributes for tag, attributes in elements if tag == "svg"]
    assert drawings
    assert all(attributes.get("aria-label") for attributes in drawings)


def test_the_page_stays_small(whole):
    assert len(whole.encode()) < 3_000_000


def test_beside_a_table_the_page_leaves_out_all_numbers_and_links_to_them(whole):
    short = render(Contents(*everything()), numbers="table.csv")
    links = {str(attributes.get("href")) for tag, attributes in Page(short).elements if tag == "a"}
    assert "table.csv" in links
    assert "table.csv" not in whole
    assert short.count('<table class="numbers">') < whole.count('<table class="numbers">')
    assert len(short) < 0.7 * len(whole)


def test_other_protocols_get_their_own_table():
    results = [breakaway("a"), breakaway("b"), breakaway("a", settings={"samples": 50, "seed": 0})]
    page = render(Contents(results, []))
    words = " ".join(Page(page).words.split())
    assert "samples 50 instead of 300" in words
    assert page.count('<table class="numbers">') == 4  # two in the summary, two in the section


@pytest.mark.parametrize("count", rest_slow([1, 12]))
def test_any_number_of_encoders_is_laid_out(count):
    results = [displacement(f"encoder-{k}") for k in range(count)]
    words = Page(render(Contents(results, []))).words
    assert f"encoder-{count - 1}" in words


@pytest.mark.parametrize("names", [("digits-random", "digits-robust"), ("digits-random", "digits-robust", "third")])
def test_paired_differences_are_on_the_page(names):
    results = [breakaway(name) for name in names]
    contents = Contents(results, [])
    words = " ".join(Page(render(contents)).words.split())
    assert "digits-random − digits-robust" in words
    assert ("Paired differences" in words) == (len(names) > 2)
    gap = contents.comparison.contests[0].pairs[0].difference
    assert f"{number(gap.value)} [{number(gap.low)}, {number(gap.high)}] digits-robust is better" in words


def test_words_of_our_own_are_replaced_and_those_that_stay_are_explained(whole):
    one = breakaway("a")
    aimed = one.estimates[0].model_copy(update={"conditions": {"ball": "linf:0.1", "attack": "adaptive at retrieval"}})
    findings = named(one.findings.model_copy(update={"estimates": (aimed,)}), Breakaway.words, Breakaway.aims)
    one = one.model_copy(update={"findings": findings})
    words = Page(render(Contents([one], []))).words + Page(whole).words
    for strange in ("headline row", "holds fastest", "at retrieval", "share of others"):
        assert strange not in words
    legend = words[words.index("How to read this", words.index("What was measured")) :]
    for explained in (
        "setting",
        "objective: another nearest neighbour",
        "of other images",
        "u-pgd",
        "A − B",
        "12.75/255",
    ):
        assert explained in legend


def test_a_reason_against_ranking_is_said_once_and_only_where_there_is_a_ranking():
    alone, other = (breakaway(name) for name in ("digits-robust", "digits-random"))
    reason = "it is not a mean or median of one recorded value per sample"

    def words(*results):
        loose = [r.model_copy(update={"findings": unpaired(r.findings)}) for r in results]
        return Page(render(Contents(loose, []))).words

    def unpaired(findings):
        changed = tuple(e.model_copy(update={"statistic": "other"}) for e in findings.estimates)
        return findings.model_copy(update={"estimates": changed})

    assert reason not in words(alone)
    assert "nothing to compare" not in words(alone)
    both = words(alone, other)
    assert both.count(reason) == 1
    assert says(both, "breakaway risk (8 cases)", "accuracy (8 cases)", "effective rank:")


def test_a_run_in_which_everything_failed_is_still_a_page():
    failure = Failure(evaluation="breakaway", encoder="a", images="x", error="E", reason="out of memory")
    words = Page(render(Contents([], [failure]))).words
    assert says(words, "Nothing", "measured")
    assert "out of memory" in words


def test_who_was_asked_for_and_is_missing_is_in_the_title_and_causes_are_grouped():
    reasons = ("out of memory", "no rule for Softmax", "too many neurons", "no labels")
    failures = [
        Failure(evaluation=f"evaluation-{k}", encoder=encoder, images="x", error="E", reason=reason)
        for encoder in ("lost", "digits-robust", "digits-random")
        for reason in reasons
        for k in range(3)
    ]
    results = [breakaway("digits-robust"), breakaway("digits-random")]
    page = render(Contents(results, failures))
    assert "Robustness of 2 of 3 encoders on builtin:digits" in page
    first, rest = Page(page).words.split("Next steps", 2)[1:]
    assert says(first, "lost", "out of memory", "Softmax")
    assert "36 results failed" in first
    table = page[page.index('aria-label="Results not measured or failed"') :]
    assert table[: table.index("</table>")].count("<tr>") == 1 + len(reasons)
    shared = "evaluation-0, evaluation-1 and evaluation-2 of lost, digits-robust and digits-random"
    assert rest.count(shared) == len(reasons)


def test_baselines_are_not_counted_in_the_title():
    baseline = breakaway("pixels")
    source = baseline.encoder.model_copy(update={"source": "baseline:pixels?shape=1x8x8"})
    beside = baseline.model_copy(update={"encoder": source})

    def title(*results: Result) -> str:
        words = Page(render(Contents(results, []))).words
        return words[words.index("Robustness of") :].partition(" on ")[0]

    assert title(breakaway("digits-robust"), breakaway("digits-random"), beside) == "Robustness of 2 encoders"
    assert title(breakaway("digits-robust"), beside) == "Robustness of digits-robust"
    assert title(beside) == "Robustness of pixels"


def test_an_empty_finding_is_laid_out():
    bare = result("bare", "a", Findings(ids=()), ())
    assert "Bare under attack" in Page(render(Contents([bare], []))).words


def test_an_encoder_without_an_evaluation_leaves_a_dash():
    results = [breakaway("a"), breakaway("b"), impersonation("a")]
    assert says(render(Contents(results, [])), "under this protocol")


def test_evaluations_of_their_own_inputs_are_not_short_of_samples():
    made = result("made-up", "a", Findings(ids=()), ())
    page = render(Contents([made], []))
    assert says(page, "its own making")
    assert "Small sample" not in page
    both = [made, result("other", "a", Findings(ids=("x",) * 70), ())]
    assert "evaluation: 70." in render(Contents(both, []))


def test_each_picture_is_stored_once():
    one = breakaway("digits-robust")
    pngs = {png for picture in one.findings.pictures for png in picture.pngs}
    page = render(Contents([one, breakaway("digits-random")], []))
    assert pngs
    assert all(page.count(png) == 1 for png in pngs)
    assert page.count("image/png;base64") == len(pngs)
    assert "aspect-ratio:" not in page.partition("</style>")[0].rpartition(".pictures")[2], "these are square"
    wide = png(torch.zeros(1, 2, 6), Domain((1, 2, 6)))
    assert wide is not None
    picture = Picture(caption="wide", labels=("clean",), pngs=(wide,))
    found = one.model_copy(update={"findings": one.findings.model_copy(update={"pictures": (picture,)})})
    assert "aspect-ratio:6/2" in render(Contents([found], []))


def test_the_first_screen_comes_before_all_numbers_and_every_cell_leads_to_its_section(whole):
    card = whole[whole.index('<table class="first-screen">') :]
    card = card[: card.index("</table>")]
    assert whole.index('class="first-screen"') < whole.index('<table class="numbers">')
    links = re.findall(r'<a href="#(evaluation-[\w-]+)">', card)
    assert len(links) == 4 * card.count('<th scope="row">') > 8
    columns = re.findall(r'class="encoder"><i [^>]*></i>([^<]+)</th>', card)
    cells = re.findall(r'class="whose"><i [^>]*></i>([^<]+)</span>', card)
    assert cells == columns * (len(links) // 4), "on a narrow screen each cell says whose it is"
    for target in links:
        assert f'id="{target}"' in whole


def test_sections_are_closed_until_a_link_leads_into_them(whole):
    details = [attributes for tag, attributes in Page(whole).elements if tag == "details"]
    assert len(details) > 10
    assert not any("open" in attributes for attributes in details)
    # Browsers open what holds the target of a link, and not what is the target itself.
    for mark in re.findall(r'<div id="([\w-]+)" class="inside">', whole):
        before = whole[: whole.index(f'<div id="{mark}"')]
        assert before.rstrip().endswith("</summary>"), mark


def test_the_bank_is_named_beside_the_images():
    bank = ImagesInfo(name="train", fingerprint="ab12", count=1200)
    searched, without = (
        " ".join(Page(render(Contents([one], []))).words.split()) for one in (breakaway("a", bank=bank), breakaway("a"))
    )
    assert "train, 1,200 images, fingerprint ab12" in searched
    assert "1,200 images" not in without


def test_a_bank_goes_by_the_name_that_its_evaluation_gives_it():
    may = breakaway("a", bank=ImagesInfo(name="may", fingerprint="ab12", count=1200))
    page = render(Contents([may.model_copy(update={"bank_title": "Images before"})], []))
    assert re.search(r"images before</th><td>may, 1,200 images, fingerprint ab12</td>", page, re.IGNORECASE)
    assert ">bank</th>" not in page.lower()


def test_a_page_reloads_itself_only_while_the_run_lasts() -> None:
    contents = Contents([breakaway("digits-robust")], [])
    going = render(contents, state=RunState(0.38, 230.0, "2026-11-23 10:00:00 UTC"))
    assert '<meta http-equiv="refresh" content="20">' in going, "itself, without an address"
    assert "38% done, about 4 minutes left" in going
    assert "<script" not in going
    assert "refresh" not in render(contents)


def test_a_note_stands_under_the_heading_that_it_concerns():
    edits = result("common-perturbations", "a", breakaway("a").findings, ("breakaway_risk",))
    page = render(Contents([warned(breakaway("a"), "Here."), warned(edits, "There."), displacement("a")], []))
    parts = {heading: page.index(f'id="{heading}"') for heading in ("attacked", "everyday-changes")}
    assert parts["attacked"] < page.index("Here.") < parts["everyday-changes"] < page.index("There.")
    both = render(Contents([warned(breakaway("a"), "All."), warned(edits, "All.")], []))
    assert both.count("All.") == 1
    assert both.index("All.") < both.index('id="attacked"')
