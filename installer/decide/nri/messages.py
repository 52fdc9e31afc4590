"""The messages of NRI that a plugin for CDI devices needs: field numbers, the same from NRI 0.2 to 0.12.

From pkg/api/api.proto of NRI and ttrpc's request.proto (engine-facts.md#nri-fields). What is left out is
skipped when it comes, and never sent.
"""

from typing import Final

from installer.decide.nri.wire import BYTES, INT, MAP, Field, Schema

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

# ttrpc
ASKED: Final[Schema] = {1: Field("service"), 2: Field("method"), 3: Field("payload", BYTES)}
STATUS: Final[Schema] = {1: Field("code", INT), 2: Field("message")}
ANSWERED: Final[Schema] = {1: Field("status", inner=STATUS), 2: Field("payload", BYTES)}

# Registration
REGISTER: Final[Schema] = {1: Field("name"), 2: Field("index")}
CONFIGURE: Final[Schema] = {2: Field("engine"), 3: Field("version")}
CONFIGURED: Final[Schema] = {2: Field("events", INT)}
# Bit n - 1 for event n. 0 would be all of them, which makes the plugin a validator on containerd 2.2 and
# fails every container of the node; a bit that the engine does not know ends the connection.
CREATE_CONTAINER_ALONE: Final = 1 << (4 - 1)

# Pods and containers
POD: Final[Schema] = {1: Field("id"), 2: Field("name"), 4: Field("namespace"), 6: Field("annotations", MAP)}
CONTAINER: Final[Schema] = {
    1: Field("id"),
    2: Field("pod"),
    3: Field("name"),
    4: Field("state", INT),
    6: Field("annotations", MAP),
}
STOPPED: Final = 4
SYNCHRONIZE: Final[Schema] = {
    1: Field("pods", inner=POD, many=True),
    2: Field("containers", inner=CONTAINER, many=True),
    3: Field("more", INT),
}
SYNCHRONIZED: Final[Schema] = {2: Field("more", INT)}
CREATE: Final[Schema] = {1: Field("pod", inner=POD), 2: Field("container", inner=CONTAINER)}
DEVICE: Final[Schema] = {1: Field("name")}
ADJUSTMENT: Final[Schema] = {2: Field("annotations", MAP), 8: Field("devices", inner=DEVICE, many=True)}
CREATED: Final[Schema] = {1: Field("adjust", inner=ADJUSTMENT)}

# Codes of gRPC, which ttrpc has too.
INVALID_ARGUMENT: Final = 3
PERMISSION_DENIED: Final = 7
UNIMPLEMENTED: Final = 12
# What newer and older engines tell a plugin without being asked, and what needs no words for an answer.
TOLD_ONLY: Final = frozenset(
    {
        *("StateChange", "Shutdown", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        *("PostCreateContainer", "StartContainer", "PostStartContainer", "RemoveContainer"),
    }
)
