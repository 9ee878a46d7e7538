"""The page as a person uses it, in a real browser: type, translate, alternatives, words that belong together, swap, upload,
errors."""

from __future__ import annotations

import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from support import wait_until

from dragoman.serve.limits import Keys

uvicorn = pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")

PATIENCE = 120_000  # ms: a busy machine is no failure


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on PATH: the page is not tested here")
    with playwright.sync_playwright() as driver:
        playwright.expect.set_options(timeout=PATIENCE)
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def address(make, shouter):
    """English to German and back, and to Japanese."""
    limits = replace(make.limits, characters_per_text=200, characters=400, body_bytes=4000)
    others = ("back", "de", "en"), ("third", "en", "ja")
    app = make(make.behind(shouter), *(make.behind(make.shouter(), *each) for each in others), limits=limits)
    with serving(app) as address:
        yield address


@contextmanager
def serving(app):
    """A real server in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def page(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if address not in request.url else None)
    opened(page, address)
    yield page
    context.close()
    assert not [each for each in wrong if not each.startswith("blob:")], (
        "nothing fails, and nothing comes from elsewhere"
    )


def opened(page, address):
    """The languages come after the page; before them nothing can be translated."""
    page.goto(address)
    page.wait_for_selector("#target option", state="attached")


def shown(page, text):
    playwright.expect(page.locator("#result")).to_have_text(text)


def test_type_and_translate_with_the_keyboard_alone(page):
    playwright.expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("the cat sleeps")
    page.keyboard.press("Control+Enter")
    shown(page, "THE CAT SLEEPS")
    assert page.inner_text("#count") == "14 characters"


def test_alternatives_and_words_that_belong_together(page):
    page.fill("#text", "the cat")
    page.check("#alternatives")
    playwright.expect(page.locator("#others li")).to_have_text(["THE CAT!", "THE CAT!!", "THE CAT!!!"])
    page.hover("#result .word >> nth=0")
    playwright.expect(page.locator("#twin .lit")).to_have_text("the")
    page.hover("#twin .word >> nth=0")
    playwright.expect(page.locator("#result .lit")).to_have_text("THE")


def test_lines_have_alternatives_and_words_too(page):
    page.fill("#text", "the cat\n\na house")
    page.check("#alternatives")
    playwright.expect(page.locator("#others li")).to_have_text(
        [f"THE CAT{marks}\n\nA HOUSE{marks}" for marks in ("!", "!!", "!!!")]
    )
    page.hover("#result .word >> nth=2")
    playwright.expect(page.locator("#twin .lit")).to_have_text("a")


def test_a_text_of_many_lines_says_what_it_does_without(page):
    page.fill("#text", "a\nb\nc\nd")
    page.click("#go")
    playwright.expect(page.locator("#time")).to_contain_text(
        "alternatives and words that belong together are for up to 2,000"
    )
    shown(page, "A\nB\nC\nD")


def test_sentences_are_joined_as_their_language_does(page):
    for language, text in (("de", "ONE. TWO.\nC\nD\nE"), ("ja", "ONE.TWO.\nC\nD\nE")):
        page.select_option("#target", language)
        page.fill("#text", "One. Two.\nc\nd\ne")
        page.click("#go")
        shown(page, text)


def test_words_that_belong_together_by_keyboard(page):
    page.fill("#text", "the small cat")
    page.keyboard.press("Control+Enter")
    shown(page, "THE SMALL CAT")
    lit, twin = page.locator("#result .lit"), page.locator("#twin .lit")
    page.focus("#save")
    page.keyboard.press("Tab")  # the text
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#result .word >> nth=0")).to_be_focused()
    for key, word in (("ArrowRight", "small"), ("ArrowRight", "cat"), ("ArrowRight", "cat"), ("ArrowLeft", "small"),
                      ("Home", "the"), ("ArrowLeft", "the"), ("End", "cat")):  # fmt: skip
        page.keyboard.press(key)
        playwright.expect(lit).to_have_text(word.upper())
        playwright.expect(twin).to_have_text(word)
    assert page.get_attribute("#result .word:focus", "aria-description") == "cat"
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#twin .word >> nth=0")).to_be_focused()
    playwright.expect(lit).to_have_text("THE")
    page.keyboard.press("Shift+Tab")
    playwright.expect(page.locator("#result .word >> nth=2")).to_be_focused()
    assert page.locator("#result [tabindex='0'], #twin [tabindex='0']").count() == 2, "one stop for each text"
    page.hover("#result .word >> nth=1")
    playwright.expect(twin).to_have_text("small")
    page.hover("h1")
    playwright.expect(twin).to_have_text("cat")
    page.focus("#text")
    playwright.expect(page.locator(".lit")).to_have_count(0)


def test_words_that_belong_together_by_touch(browser, address):
    page = browser.new_page(viewport={"width": 360, "height": 800}, has_touch=True, is_mobile=True)
    page.set_default_timeout(PATIENCE)
    opened(page, address)
    page.fill("#text", "the small cat")
    page.tap("#go")
    shown(page, "THE SMALL CAT")
    for number, word in ((1, "small"), (2, "cat")):
        page.tap(f"#result .word >> nth={number}")
        playwright.expect(page.locator(f"#result .word >> nth={number}")).to_be_focused()
        playwright.expect(page.locator("#twin .lit")).to_have_text(word)
    page.tap("#twin .word >> nth=0")
    playwright.expect(page.locator("#result .lit")).to_have_text("THE")
    page.close()


def test_a_text_that_is_cleared_while_it_is_translated(page, shouter):
    shouter.go.clear()
    page.fill("#text", "slow")
    page.keyboard.press("Control+Enter")
    wait_until(shouter.busy.locked)
    playwright.expect(page.locator("#go")).to_be_disabled()
    page.fill("#text", "")
    page.keyboard.press("Control+Enter")
    playwright.expect(page.locator("#go")).to_be_enabled()
    shouter.go.set()
    page.fill("#text", "quick")
    page.click("#go")
    shown(page, "QUICK")


def test_a_sentence_that_fails_is_seen_among_the_others(page):
    page.fill("#text", "One.\ncrash\nThree.\nFour.")
    page.click("#go")
    shown(page, "ONE.\ncrash\nTHREE.\nFOUR.")
    playwright.expect(page.locator("#result .failed")).to_have_text("crash")
    playwright.expect(page.locator("#problem")).to_have_text(
        "a sentence, underlined: the translation failed; the server's log says why"
    )


def test_a_key_is_asked_for_and_kept(make, browser, tmp_path):
    (tmp_path / "keys").write_text("open-sesame\n")
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    with serving(make(make.behind(make.shouter()), keys=Keys(tmp_path / "keys"))) as address:
        opened(page, address)
        page.fill("#text", "hello")
        page.click("#go")
        playwright.expect(page.locator("#problem")).to_contain_text("an API key is needed")
        playwright.expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("open-sesame")
        page.keyboard.press("Enter")
        shown(page, "HELLO")
        playwright.expect(page.locator("#problem")).to_have_text("")
        page.reload()
        page.wait_for_selector("#target option", state="attached")
        page.fill("#text", "again")
        page.click("#go")
        shown(page, "AGAIN")
        page.close()


def test_swap_with_the_keyboard(page):
    page.keyboard.press("Alt+s")
    playwright.expect(page.locator("#source")).to_have_value("de")
    # What a Mac makes of it, where Alt+S types a letter.
    page.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ß', code: 'KeyS', altKey: true}))")
    playwright.expect(page.locator("#source")).to_have_value("en")
    page.evaluate(
        "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ś', code: 'KeyS', altKey: true, ctrlKey: true}))"
    )
    playwright.expect(page.locator("#source")).to_have_value("en")


def test_swap_the_languages(page):
    page.fill("#text", "hello")
    page.click("#go")
    shown(page, "HELLO")
    page.click("#swap")
    assert (page.input_value("#source"), page.input_value("#target")) == ("de", "en")
    assert page.input_value("#text") == "HELLO"
    assert page.inner_text("#model") == "back"


def test_a_text_file_paragraph_by_paragraph(page, tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("One. Two.\n\nשלום <b>& 😀\n", encoding="utf-8")
    page.set_input_files("#file", file)
    shown(page, "ONE. TWO.\n\nשלום <B>& 😀\n")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "translation.txt"
    (tmp_path / "picture.txt").write_bytes(b"\xff\xfe\x00")
    page.set_input_files("#file", tmp_path / "picture.txt")
    playwright.expect(page.locator("#problem")).to_have_text("picture.txt: is not a text file in UTF-8")


def test_errors_are_seen(page, shouter):
    page.fill("#text", "a" * 201)
    page.click("#go")
    playwright.expect(page.locator("#problem")).to_contain_text("201 characters; at most 200")
    page.fill("#text", "crash")
    page.click("#go")
    playwright.expect(page.locator("#problem")).to_contain_text("the translation failed")
    page.fill("#text", "fine")
    page.click("#go")
    shown(page, "FINE")
    playwright.expect(page.locator("#result.old")).to_have_count(0)
    page.fill("#text", "crash")
    page.click("#go")
    playwright.expect(page.locator("#problem")).to_contain_text("the translation failed")
    playwright.expect(page.locator("#result.old")).to_have_text("FINE")
    page.fill("#text", "fine")
    page.click("#go")
    playwright.expect(page.locator("#problem")).to_have_text("")
    assert page.inner_text("#problem") == ""


def test_a_newer_question_replaces_the_one_that_is_still_running(page, shouter):
    shouter.go.clear()
    page.fill("#text", "slow")
    page.keyboard.press("Control+Enter")
    wait_until(shouter.busy.locked)
    page.fill("#text", "quick")
    page.keyboard.press("Control+Enter")
    shouter.go.set()
    shown(page, "QUICK")


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(browser, address, width):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
    page.set_default_timeout(PATIENCE)
    opened(page, address)
    page.fill("#text", "w" * 150)
    page.click("#go")
    shown(page, "W" * 150)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    page.close()
