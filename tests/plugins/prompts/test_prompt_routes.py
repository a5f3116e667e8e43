"""A route of prompts asks for the right to everything that it changes, and has the names that its command has."""

from __future__ import annotations

from gateway.rooms.routes import TABLE
from plugins.prompts.commands import prompts
from plugins.prompts.prompt_part import PromptPart
from tests.support.documented import document
from tests.unit.test_denied_everywhere import check_rights

MOVES_ALIAS = ("jobs.order", "adapters.promote")
CHANGES = {
    "plugins.prompts.search.activation.activate": ("adapters.promote",),
    "plugins.prompts.search.search_request.order": MOVES_ALIAS,  # its job moves config.alias
    "prompts.create": ("tasks.submit",),
    "jobs.start": ("jobs.order",),
}


def test_a_route_asks_for_the_right_to_everything_that_it_changes() -> None:
    check_rights(PromptPart.ROOMS, CHANGES)
    moves = {route.name for route in TABLE.routes if "adapters.promote" in route.further.values()}
    assert moves == {"create_template", "optimize_prompt", "create_training_job"}


def test_a_text_has_one_name_in_routes_and_commands() -> None:
    assert "--template" in {option for parameter in prompts.commands["create"].params for option in parameter.opts}
    assert "template" in document()["components"]["schemas"]["TemplateBody"]["properties"]
