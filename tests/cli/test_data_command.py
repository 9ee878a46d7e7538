"""`dragoman data` as a user meets it."""

import os
import subprocess
import sys

from support import dragoman

OFFLINE = """
import socket, sys
def nobody(*arguments, **options):
    raise socket.gaierror(-2, "Name or service not known")
socket.getaddrinfo = nobody
sys.argv = ["dragoman", *sys.argv[1:]]
from dragoman.cli.main import main
main()
"""


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['dragoman', 'data', 'get', '--help']\n"
        "from dragoman.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'sacrebleu', 'sentencepiece'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


def test_list_names_corpora():
    assert "wmt16-en-de" in dragoman("data", "list").stdout
    listed = dragoman("data", "list", "--from", "en", "--to", "fr").stdout
    assert "newstest2014-en-fr" in listed
    assert "europarl-en-fr" in listed
    assert "wmt16-en-de" not in listed


def test_offline_is_one_line_with_what_to_do(tmp_path):
    command = [sys.executable, "-c", OFFLINE, "data", "get", "wmt16-en-de"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert "licence: free for research" in result.stdout
    assert "download: 1,651.1 MB" in result.stdout
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("dragoman: wmt13-test.tgz could not be downloaded")
    assert "Name or service not known" in line
    assert "Run the same command again" in line


def test_an_unknown_name(tmp_path):
    result = dragoman("data", "get", "wmt99-en-de", check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("dragoman: wmt99-en-de: no corpus of that name")
    assert list(tmp_path.iterdir()) == []


def test_inspect_shortens_no_number(prepared):
    told = dragoman(
        "data", "inspect", str(prepared.folder), env={**os.environ, "COLUMNS": "80", "FORCE_COLOR": "1"}
    ).stdout
    assert "pieces used" in told
    assert "…" not in told.partition("Samples of what was dropped")[0].partition("misaligned")[0]


def test_inspect_shows_text_and_writes_a_page(tmp_path):
    (tmp_path / "a.en").write_text("The [red] dog sleeps.\nIs 12 here?\n")
    (tmp_path / "a.de").write_text("Der [rote] Hund schläft.\nWas für ein ganz anderer und langer Satz, 99.\n")
    result = dragoman("data", "inspect", "a.en", "a.de", "--html", "page.html", cwd=tmp_path)
    assert "Lengths" in result.stdout
    assert "█" in result.stdout
    assert "anderer" in result.stdout
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    (tmp_path / "rows.txt").write_text('{"q": "a cat", "a": "eine Katze"}\n', encoding="utf-8")
    rows = dragoman("data", "inspect", "rows.txt", "--format", "jsonl", "--keys", "q", "a", cwd=tmp_path)
    assert "target" in rows.stdout
    refused = dragoman("data", "inspect", "rows.txt", "--format", "xlsx", check=False, cwd=tmp_path)
    assert "data.format" in refused.stderr
    wrong = dragoman("data", "inspect", "a.en", check=False, cwd=tmp_path)
    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 1
