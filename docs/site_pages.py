"""What the site has besides the pages of docs/: files from the root, the examples, and the reference from docstrings.

mkdocs calls these functions (`hooks` in mkdocs.yml). Links between docs/ and the root are turned into links of the
site, where both are in one folder, so the same files read well in a repository and on the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OUTSIDE = ["CHANGELOG.md", "CONTRIBUTING.md", *(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.*"))]
LISTS = {"ALGORITHMS", "LINKS", "PRESETS"}
"""Names whose values say more than their docstrings; api.md has them."""
HEAD = """# API

Every public name of `import meshmend as mm`, made from the docstrings. The [guide](guide.md) shows how they are used
together, [API on one page](api.md) has the same in short.
"""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site."""
    name = page.file.src_uri
    if name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        return markdown.replace("](docs/", "](")
    if name.startswith("examples/"):
        return markdown.replace("](../docs/", "](../")
    return re.sub(r"\]\(\.\./(?=examples/|CONTRIBUTING|CHANGELOG)", "](", markdown) if "/" not in name else markdown


def reference() -> str:
    """The page of public names, by the sections of api.md."""
    sys.path.insert(0, str(Path(__file__).parent))
    import api_page

    errors = [name for name in api_page.public_names() if api_page._is_error(getattr(api_page.mm, name))]
    modules = api_page.mm._MODULES
    parts = [HEAD]
    for title, names in {**api_page.SECTIONS, "Errors": errors}.items():
        parts.append(f"\n## {title}\n")
        parts += [f"::: meshmend.{modules.get(name, name)}\n" for name in names if name not in LISTS]
    return "\n".join(parts)
