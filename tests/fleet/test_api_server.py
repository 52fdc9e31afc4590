"""The stand-in answers as a real API server did, request by request."""

import json

from tests.fleet.api_server import TOKENS, ApiServer
from tests.fleet.recorded import RECORDED, Identities, load

VERSION = "1.36"


def test_the_stand_in_answers_as_the_real_server_was_recorded() -> None:
    server = ApiServer()
    identities = Identities()
    for step in load():
        code, answer = server.answer(step.method, step.path, TOKENS[step.user], identities.fill(step.body))
        identities.learn(answer)

        assert (step.name, code, identities.blank(answer)) == (step.name, step.code, step.answer)
    assert server.unknown == []


def test_the_record_is_of_the_version_that_the_documents_name() -> None:
    version = json.loads(RECORDED.read_text())["version"]

    assert f"{version['major']}.{version['minor']}" == VERSION
