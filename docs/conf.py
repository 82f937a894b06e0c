"""The site of docs/: `make docs` builds it, and any warning, broken link or missing anchor ends the build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import nextlong

# Sphinx writes pages of these names itself, over pages of ours.
for name in ("search", "genindex"):
    assert not Path(__file__).with_name(f"{name}.md").exists(), f"rename {name}.md"

project, author, release = "nextlong", "The nextlong maintainers", nextlong.__version__
copyright = author  # noqa: A001 # Sphinx's own name for it
extensions = ["myst_parser", "sphinx_argparse_cli", "recipe_reference"]
exclude_patterns = ["_build"]
nitpicky = True
html_theme = "furo"
html_title = f"nextlong {release}"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
pygments_style = "default"
