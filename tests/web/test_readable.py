"""Basics for keyboards and screen readers: labels, headings, focus, contrast."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

FIELDS = ("input", "select", "textarea")
UNSEEN = ("hidden", "submit", "button")


class Page(HTMLParser):
    """Fields without a name, images without a text, headings, and what is odd."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: list[dict[str, str | None]] = []
        self.labels: set[str | None] = set()
        self.headings: list[int] = []
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.language: str | None = None
        self.within = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        a = dict(attributes)
        if tag == "html":
            self.language = a.get("lang")
        if tag == "label":
            self.within += 1
            self.labels.add(a.get("for"))
        if tag in FIELDS and a.get("type") not in UNSEEN and not self.within:
            self.fields.append(a)
        if tag == "img" and "alt" not in a:
            self.faults.append("an image without alt")
        if tag == "svg" and not ("aria-label" in a or "aria-hidden" in a):
            self.faults.append("a drawing without a name")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if int(a.get("tabindex") or 0) > 0:
            self.faults.append("an order of focus of its own")
        if a.get("id"):
            self.ids.append(str(a["id"]))

    def handle_endtag(self, tag: str) -> None:
        self.within -= tag == "label"

    def unnamed(self) -> list[str]:
        named = ("aria-label", "aria-labelledby", "title")
        return [
            str(a.get("name") or a.get("id"))
            for a in self.fields
            if a.get("id") not in self.labels - {None} and not any(n in a for n in named)
        ]


@pytest.mark.parametrize(
    "url",
    [
        "/",
        "/studies/new",
        "/studies/new?kind=training",
        "/studies/new?kind=personalisation",
        "/studies/new?kind=association",
        "/studies/{study_id}",
        "/studies/{study_id}/runs/1",
        "/compare",
        "/audit",
        "/accounts",
        "/account",
        "/join",
        "/login",
    ],
)
def test_fields_have_labels_and_pages_an_outline(world, places, url):
    browser = world.visitor() if url == "/login" else world.visitor("ada")
    answer = browser.get(url.format(**places))
    assert answer.status_code == 200
    page = Page(answer.text)
    assert page.language == "en"
    assert page.unnamed() == []
    assert page.faults == []
    assert page.headings.count(1) == 1
    assert len(page.ids) == len(set(page.ids))
    assert 'class="skip"' in answer.text  # to the content, past the menu


def test_a_field_without_a_label_is_found():
    assert Page('<label for="a"></label><input id="a"><input name="b">').unnamed() == ["b"]
    assert Page("<label>x <input name='c'></label>").unnamed() == []


def luminance(colour: str) -> float:
    whole = colour * 2 if len(colour) == 3 else colour
    parts = [int(whole[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_stand_out(scheme):
    """WCAG AA: at least 4.5 for text, in both colour schemes."""
    style = (files("cupola.pages") / "style.css").read_text()
    colours = dict(re.findall(r"--([\w-]+):#(\w+)", style.split(":root{")[scheme + 1]))
    pairs = [(ink, paper) for ink in ("ink", "soft", "accent") for paper in ("bg", "card")]
    pairs += [(kind, f"{kind}-bg") for kind in ("good", "warn", "bad")] + [("accent", "wash")]
    for ink, paper in pairs:
        assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)


def test_focus_is_shown():
    style = (files("cupola.pages") / "style.css").read_text()
    own = (files("cupola.web") / "static" / "web.css").read_text()
    assert re.search(r":focus-visible\{outline:2px", style)
    assert "button:focus-visible" in own
    assert "outline:none" not in (style + own).replace(" ", "")
