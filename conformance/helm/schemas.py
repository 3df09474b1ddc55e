"""Schemas of kinds that Kubernetes itself does not have, for the fields that the chart uses and no others.

Written from the API references of the inference extension (v1), KEDA (2.x) and the Prometheus operator (v1). An unknown
field is an error here, as the API server would drop it without a word.
"""


def obj(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def some(items, least=1, most=None):
    return {"type": "array", "items": items, "minItems": least} | ({"maxItems": most} if most else {})


TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
COUNT = {"type": "integer", "minimum": 0}
LABEL = {"type": "string", "maxLength": 63, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}
DURATION = {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h)$"}
META = obj(["name", "labels"], name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253},
           namespace=TEXT, labels={"type": "object", "additionalProperties": LABEL}, annotations=TEXTS)
SELECTOR = obj(["matchLabels"], matchLabels={"type": "object", "minProperties": 1, "additionalProperties": LABEL})

POOL = obj(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=SELECTOR,
    targetPorts=some(obj(["number"], number=PORT), most=8) | {"uniqueItems": True},
    appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
    endpointPickerRef=obj(["name", "port"], group={"const": ""}, kind={"const": "Service"}, name=TEXT,
                          port=obj(["number"], number=PORT), failureMode={"enum": ["FailOpen", "FailClose"]}),
)

# All values of a trigger's metadata are strings.
TRIGGER = obj(
    ["type", "metadata"], type={"const": "prometheus"}, name=TEXT, metricType={"enum": ["AverageValue", "Value"]},
    metadata=obj(["serverAddress", "query", "threshold"], serverAddress={"type": "string", "pattern": "^https?://"},
                 query=TEXT, threshold={"type": "string", "pattern": r"^[0-9.]+$"},
                 activationThreshold={"type": "string", "pattern": r"^[0-9.]+$"}, ignoreNullValues={"enum": ["true", "false"]}),
)
SCALED = obj(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=obj(["name"], apiVersion=TEXT, kind=TEXT, name=TEXT),
    minReplicaCount=COUNT, maxReplicaCount=COUNT, cooldownPeriod=COUNT, pollingInterval=COUNT, triggers=some(TRIGGER),
)

ENDPOINT = obj(
    ["port"], port=TEXT, path={"type": "string", "pattern": "^/"}, interval=DURATION,
    relabelings=some(obj(["targetLabel"], targetLabel=TEXT, replacement=TEXT)),
    authorization=obj(["credentials"], credentials=obj(["name", "key"], name=TEXT, key=TEXT)),
)

SPECS = {
    ("inference.networking.k8s.io/v1", "InferencePool"): POOL,
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED,
    ("monitoring.coreos.com/v1", "PodMonitor"): obj(["selector", "podMetricsEndpoints"], selector=SELECTOR,
                                                     podMetricsEndpoints=some(ENDPOINT)),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): obj(["selector", "endpoints"], selector=SELECTOR, endpoints=some(ENDPOINT)),
}


def schema_of(document):
    """The schema of an object of another project; None for one of Kubernetes'."""
    spec = SPECS.get((document["apiVersion"], document["kind"]))
    return spec and obj(["metadata", "spec"], apiVersion=TEXT, kind=TEXT, metadata=META, spec=spec)
