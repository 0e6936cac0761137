"""How the documentation is built: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

from privfed.core import __version__  # noqa: E402

project = "privfed"
author = "the privfed contributors"
copyright = "the privfed contributors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "pages",
]
html_math_renderer = "mathml"
exclude_patterns = ["_build", "_extensions"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of signatures; links in prose are of other kinds
smartquotes = False  # quotes in prose are those of keys
default_role = "code"
highlight_language = "none"  # of blocks that name none

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {
    # those of scikit-learn: added to estimators by its base class, with texts in another form
    "exclude-members": "model_config, later, set_fit_request, set_score_request",
}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"privfed {version}"
html_static_path = ["_static"]
html_css_files = ["house.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
