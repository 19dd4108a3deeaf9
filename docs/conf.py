"""Sphinx configuration of the documentation site; `make docs` builds it into build/docs."""

import argparse
import os
import re
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "100"  # argparse wraps its help to this width

project = "dithc"
author = "dithc contributors"
copyright = "dithc contributors, Apache-2.0"
release = version_of("dithc")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"dithc {release}"
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
highlight_language = "console"
default_role = "code"

# Pages of the repository that are part of the site, by their page below docs/generated.
PAGES = {
    "ARCHITECTURE.md": "architecture",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "config/README.md": "experiments",
    "profiles/README.md": "profiles",
}
MIRROR = DOCS / "generated"


def site_links(text: str, page: Path) -> str:
    """Return Markdown whose relative links lead to pages of the site.

    Args:
        text: Markdown of the repository.
        page: path of the file in the repository, which links are relative to.
    """

    def replaced(match: re.Match[str]) -> str:
        target, _, section = match[2].partition("#")
        file = (page.parent / target).resolve() if target else page.resolve()
        anchor = f"#{section}" if section else ""
        if not file.exists() or file.suffix == ".html":
            return match[0]
        name = file.relative_to(ROOT).as_posix()
        if name in PAGES:
            return f"{match[1]}(/generated/{PAGES[name]}.md{anchor})"
        if name == "README.md":
            return f"{match[1]}({'/tutorials/custom_model.md' if section else '/index.md'})"
        if file.is_relative_to(DOCS) and file.suffix == ".md":
            return f"{match[1]}(/{file.relative_to(DOCS).as_posix()}{anchor})"
        if name.startswith("examples/"):
            return f"{match[1]}(/generated/examples.md)"
        if file.is_relative_to(DOCS) or file.suffix in {".svg", ".png"}:
            return f"{match[1]}({os.path.relpath(file, MIRROR)})" if MIRROR in page.parents else match[0]
        return f"{match[1]}".removeprefix("!").strip("[]")

    return re.sub(r"(!?\[[^\]]*\])\((?!https?://|mailto:|/)([^)\s]+)\)", replaced, text)


def commands() -> str:
    """Return the page with the help of every command."""
    from dithc.cli import COMMANDS, command_module

    parts = ["# Commands\n\nThe help texts of `dithc` commands. `dithc COMMAND --help` prints the same text.\n"]
    for name in COMMANDS:
        module = import_module(command_module(name))
        parser = argparse.ArgumentParser(
            f"dithc {name}",
            description=module.SUMMARY,
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parser)
        parts.append(f"## {name}\n\n```text\n{parser.format_help()}```\n")
    return "\n".join(parts)


def examples() -> str:
    """Return the page with the example programs."""
    parts = ["# Examples\n\nThese files are in the folder `examples` of the repository. The tests run each of them.\n"]
    for path in sorted((ROOT / "examples").rglob("*.*")):
        language = {".py": "python", ".toml": "toml", ".yaml": "yaml"}.get(path.suffix)
        if language:
            parts.append(f"## {path.relative_to(ROOT / 'examples')}\n\n````{language}\n{path.read_text()}````\n")
    return "\n".join(parts)


def header() -> str:
    """Return the page with the C header."""
    text = (ROOT / "kernels/include/hcops.h").read_text()
    return f"# C API\n\nThe public header of the kernels, `kernels/include/hcops.h`.\n\n````c\n{text}````\n"


def write_pages(app: object) -> None:
    """Write the generated pages before Sphinx searches for sources."""
    MIRROR.mkdir(exist_ok=True)
    pages = {"commands": commands(), "examples": examples(), "hcops": header()}
    for name, page in PAGES.items():
        pages[page] = site_links((ROOT / name).read_text(), ROOT / name)
    for page, text in pages.items():
        path = MIRROR / f"{page}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def read_source(app: object, name: str, content: list[str]) -> None:
    """Rewrite the links of a page that lead out of docs/."""
    if not name.startswith("generated/"):
        content[0] = site_links(content[0], DOCS / f"{name}.md")


def setup(app) -> None:
    """Register the generated pages and the link rewriting."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", read_source)
