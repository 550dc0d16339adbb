"""The one command line application; the verbs add themselves to it."""

from cyclopts import App

app = App(
    name="meshmend",
    help="Keeps data-parallel training running when chips and workers die.",
    version_flags=["--version"],
    result_action="return_value",
)
