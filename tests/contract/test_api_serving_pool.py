"""What the API server accepts and refuses of a ServingPool."""

from typing import Any

import pytest
from support.crd_api import ABSENT, Api, changed, example
from tidegate_operator.api.engine import OWNED_FLAGS

pytestmark = pytest.mark.contract

ONE_SOURCE = "needs exactly one of huggingFace, persistentVolumeClaim, image and uri"
ONE_CACHE = "needs exactly one of emptyDir, persistentVolumeClaim and volumeClaimTemplate"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"
ONE_VALUE = "has both value and valueFrom"
HF = {"repo": "Qwen/Qwen3-8B"}
VOLUME = {"claimName": "weights"}

MINIMAL = {
    "apiVersion": "tidegate.io/v1alpha1",
    "kind": "ServingPool",
    "metadata": {"name": "minimal", "namespace": "default"},
    "spec": {
        "model": {"name": "m", "source": {"huggingFace": {"repo": "gpt2"}}},
        "engine": {"image": "vllm/vllm-openai:v0.32.0"},
    },
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "as documented": {},
    "embeddings": {
        "spec.model.task": "Embed",
        "spec.kvPools": ABSENT,
        "spec.prefill": ABSENT,
        "spec.engine.plugin": ABSENT,
    },
    "from a volume": {
        "spec.model.source": {"persistentVolumeClaim": {**VOLUME, "path": "llama/8b"}}
    },
    "from the root of a volume": {
        "spec.model.source": {"persistentVolumeClaim": {**VOLUME, "path": ""}}
    },
    "from an image": {
        "spec.model.source": {"image": {"reference": "registry.example/m@sha256:0a"}}
    },
    "from an address": {"spec.model.source": {"uri": "s3://models/llama-8b"}},
    "model name with a slash": {"spec.model.name": "meta-llama/Llama-3.1-8B-Instruct"},
    "no pods": {"spec.replicas": 0},
    "shared state": {"spec.sharedState": {"address": "redis://valkey:6379/1"}},
    "spans to a collector": {
        "spec.autoscaling": ABSENT,
        "spec.observability": {
            "otlp": {"endpoint": "http://otel.monitoring:4318/v1/traces", "samplePercent": 0}
        },
    },
    "scaled by the queues alone": {
        "spec.observability": ABSENT,
        "spec.autoscaling": {"maxPerGroup": 1, "signals": ["QueueWait"]},
    },
    "scaled by what there is": {
        "spec.observability": ABSENT,
        "spec.autoscaling": {"maxPerGroup": 1000},
    },
    "all tiers": {"spec.tiers": ABSENT},
    "reservations of 100 in all": {
        "spec.tiers": [{"name": f"t{n}", "reservedPercent": 25} for n in range(4)]
        + [{"name": "t4"}]
    },
    "64 tiers": {"spec.tiers": [{"name": f"t{n}"} for n in range(64)]},
    "own namespace": {"spec.tenants": {}},
    "all namespaces": {"spec.tenants": {"namespaceSelector": {}}},
    "no arguments": {"spec.engine.args": []},
    "flag with its value beside it": {"spec.engine.args": ["--block-size", "32"]},
    "flags that begin like owned ones": {
        "spec.engine.args": [
            "--model-impl=auto",
            "--max-num-seqs=8",
            "--tokenizer-mode=auto",
            "--config-format=auto",
            "-q=fp8",
            "-dcp=1",
            "-cc={}",
        ]
    },
    "value that looks like a name": {"spec.engine.args": ["--chat-template", "port"]},
    "quantities of all kinds": {
        "spec.engine.resources": {
            "limits": {"nvidia.com/gpu": 1, "cpu": "1000m", "memory": "0.5Gi", "x.io/y": "2"},
            "requests": {"cpu": "0.5"},
        }
    },
    "variable of a secret": {
        "spec.engine.env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "C", "value": ""},
            {"name": "D"},
        ]
    },
    "no time to drain": {"spec.engine.drainTimeout": "0s"},
    "cache of the node": {"spec.model.cache": {"emptyDir": {}}},
    "cache with a limit": {"spec.model.cache": {"emptyDir": {"sizeLimit": "0.5Ti"}}},
    "one cache for all": {
        "spec.model.cache": {"persistentVolumeClaim": {"claimName": "shared.cache"}}
    },
    "a cache for each": {"spec.model.cache": {"volumeClaimTemplate": {"size": 107374182400}}},
    "no place in particular": {
        "spec.engine.nodeSelector": {},
        "spec.engine.tolerations": [],
        "spec.engine.affinity": {},
        "spec.engine.topologySpreadConstraints": [],
        "spec.engine.imagePullSecrets": [],
        "spec.engine.podTemplate": {},
    },
    "taints of all kinds": {
        "spec.engine.tolerations": [
            {"operator": "Exists"},
            {"key": "a", "value": "b"},
            {"key": "a", "operator": "Equal", "effect": "PreferNoSchedule"},
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
        ]
    },
    "affinity of all kinds": {
        "spec.engine.affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "a", "operator": "In", "values": ["b", ""]},
                                {"key": "cores", "operator": "Gt", "values": ["8"]},
                                {"key": "b", "operator": "DoesNotExist"},
                            ]
                        }
                    ]
                },
                PREFERRED: [
                    {
                        "weight": 100,
                        "preference": {"matchExpressions": [{"key": "c", "operator": "Exists"}]},
                    }
                ],
            },
            "podAffinity": {
                REQUIRED: [{"topologyKey": HOST, "labelSelector": {}, "namespaces": ["a"]}]
            },
            "podAntiAffinity": {
                REQUIRED: [{"topologyKey": HOST, "namespaceSelector": {}}],
                PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": HOST}}],
            },
        }
    },
    "spread over zones": {
        "spec.engine.topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": HOST,
                "whenUnsatisfiable": "DoNotSchedule",
                "minDomains": 3,
                "labelSelector": {"matchLabels": {"a": "b"}},
                "matchLabelKeys": ["controller-revision-hash"],
            }
        ]
    },
    "any field of a pod": {
        "spec.engine.podTemplate": {
            "metadata": {"labels": {"team": "x"}, "annotations": {"a.example/b": "any text"}},
            "spec": {"fieldOfALaterKubernetes": {"deep": [1, {"er": None}]}, "hostPID": False},
        }
    },
    "in shadow": {"spec.schedulingMode": "Shadow"},
    "first come first served": {"spec.schedulingMode": "FirstComeFirstServed"},
    "service within the cluster": {"spec.service": {"type": "ClusterIP"}},
    "streams kept alive": {"spec.service": {"streamKeepAlive": "1m30s"}},
    "a router with nothing said": {"spec.router": {}},
    "a router with all said": {
        "spec.router": {
            "replicas": 3,
            "resources": {"requests": {"cpu": "2"}},
            "tls": {"secretRef": {"name": "pool-tls"}},
        }
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "name of 41": ({"metadata.name": "n" * 41}, "metadata.name must be at most 40 characters"),
    "name with a dot": ({"metadata.name": "a.b"}, "metadata.name becomes the name of a Service"),
    "name that begins with a digit": ({"metadata.name": "1a"}, "becomes the name of a Service"),
    "scaled without a bound": ({"spec.autoscaling": {}}, "maxPerGroup: Required value"),
    "a password in an address": (
        {"spec.sharedState": {"address": "redis://user:password@valkey:6379"}},
        "spec.sharedState.address in body should match",
    ),
    "fewest above most": (
        {"spec.autoscaling": {"minPerGroup": 3, "maxPerGroup": 2}},
        "minPerGroup must not be above maxPerGroup",
    ),
    "alerts of nobody": (
        {"spec.observability": ABSENT},
        "the signals Alerts and BurnRate need observability.prometheus",
    ),
    "a window too short to judge by": (
        {"spec.autoscaling": {"maxPerGroup": 2, "scaleDown": {"window": "10s"}}},
        "must be from 1m to 24h",
    ),
    "an unknown signal": (
        {"spec.autoscaling": {"maxPerGroup": 2, "signals": ["CPU"]}},
        'Unsupported value: "CPU"',
    ),
    "a Prometheus with credentials in its URL": (
        {"spec.observability": {"prometheus": "http://u:p@prometheus"}},
        "spec.observability.prometheus in body should match",
    ),
    "spans to a host alone": (
        {"spec.observability": {"otlp": {"endpoint": "otel.monitoring:4318"}}},
        "spec.observability.otlp.endpoint in body should match",
    ),
    "spans with credentials in the URL": (
        {"spec.observability": {"otlp": {"endpoint": "http://u:p@otel/v1/traces"}}},
        "spec.observability.otlp.endpoint in body should match",
    ),
    "a sample of more than all": (
        {"spec.observability": {"otlp": {"endpoint": "http://otel/", "samplePercent": 101}}},
        "samplePercent in body should be less than or equal to 100",
    ),
    "no model": ({"spec.model": ABSENT}, "spec.model: Required value"),
    "no engine": ({"spec.engine": ABSENT}, "spec.engine: Required value"),
    "no image": ({"spec.engine.image": ABSENT}, "spec.engine.image: Required value"),
    "image with a blank": ({"spec.engine.image": "a b"}, "spec.engine.image in body should match"),
    "model name that is a flag": (
        {"spec.model.name": "--port"},
        "spec.model.name in body should match",
    ),
    "task of another kind": (
        {"spec.model.task": "Rerank"},
        'supported values: "Generate", "Embed"',
    ),
    "no source": ({"spec.model.source": {}}, ONE_SOURCE),
    "two sources": (
        {"spec.model.source": {"huggingFace": HF, "persistentVolumeClaim": VOLUME}},
        ONE_SOURCE,
    ),
    "repository that is a flag": (
        {"spec.model.source": {"huggingFace": {"repo": "--host=0.0.0.0"}}},
        "huggingFace.repo in body should match",
    ),
    "repository that leaves its place": (
        {"spec.model.source": {"huggingFace": {"repo": "../etc"}}},
        "huggingFace.repo in body should match",
    ),
    "path that leaves the volume": (
        {"spec.model.source": {"persistentVolumeClaim": {**VOLUME, "path": "a/../../b"}}},
        "must be relative and without '..'",
    ),
    "absolute path": (
        {"spec.model.source": {"image": {"reference": "i", "path": "/models"}}},
        "must be relative and without '..'",
    ),
    "address without a scheme": (
        {"spec.model.source": {"uri": "models/llama"}},
        "uri in body should match",
    ),
    "context of nothing": ({"spec.model.maxModelLen": 0}, "spec.model.maxModelLen"),
    "no tier in the list": ({"spec.tiers": []}, "spec.tiers in body should have at least 1 items"),
    "one tier twice": ({"spec.tiers": [{"name": "t0"}, {"name": "t0"}]}, "Duplicate value"),
    "tier without a name": (
        {"spec.tiers": [{"maxPercent": 5}]},
        "spec.tiers[0].name: Required value",
    ),
    "65 tiers": (
        {"spec.tiers": [{"name": f"t{n}"} for n in range(65)]},
        "must have at most 64 items",
    ),
    "reservations above 100 in all": (
        {"spec.tiers": [{"name": f"t{n}", "reservedPercent": 51} for n in range(2)]},
        "the reservedPercent of all tiers sum to more than 100",
    ),
    "reserved above the maximum": (
        {"spec.tiers": [{"name": "t0", "reservedPercent": 60, "maxPercent": 50}]},
        "reservedPercent must not be above maxPercent",
    ),
    "fewer than no pods": ({"spec.replicas": -1}, "spec.replicas"),
    "more than 1000 pods": ({"spec.replicas": 1001}, "less than or equal to 1000"),
    "no GPU in parallel": ({"spec.engine.parallelism.tensor": 0}, "parallelism.tensor"),
    "what to serve in args": (
        {"spec.engine.args": ["gpt2"]},
        "must begin with a flag: what to serve stands in spec.model.source",
    ),
    "empty argument": ({"spec.engine.args": ["--a", ""]}, "should be at least 1 chars long"),
    "quantity of words": (
        {"spec.engine.resources": {"limits": {"cpu": "two"}}},
        "resources.limits.cpu in body should match",
    ),
    "variable of two values": (
        {
            "spec.engine.env": [
                {
                    "name": "A",
                    "value": "x",
                    "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}},
                }
            ]
        },
        ONE_VALUE,
    ),
    "variable of two sources": (
        {
            "spec.engine.env": [
                {
                    "name": "A",
                    "valueFrom": {
                        "secretKeyRef": {"name": "s", "key": "k"},
                        "configMapKeyRef": {"name": "c", "key": "k"},
                    },
                }
            ]
        },
        "needs exactly one of secretKeyRef and configMapKeyRef",
    ),
    "variable with an impossible name": (
        {"spec.engine.env": [{"name": "A=B"}]},
        "env[0].name in body should match",
    ),
    "variable twice": ({"spec.engine.env": [{"name": "A"}, {"name": "A"}]}, "Duplicate value"),
    "the engine's key by variable": (
        {"spec.engine.env": [{"name": "VLLM_API_KEY", "value": "x"}]},
        "this variable is the operator's own",
    ),
    "start in no time": ({"spec.engine.startupTimeout": "1s"}, "must be from 10s to 24h"),
    "cache of no kind": ({"spec.model.cache": {}}, ONE_CACHE),
    "cache of two kinds": (
        {"spec.model.cache": {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "c"}}},
        ONE_CACHE,
    ),
    "cache of no size": (
        {"spec.model.cache": {"volumeClaimTemplate": {}}},
        "volumeClaimTemplate.size: Required value",
    ),
    "cache of words": (
        {"spec.model.cache": {"volumeClaimTemplate": {"size": "large"}}},
        "volumeClaimTemplate.size in body should match",
    ),
    "cache that is read only": (
        {"spec.model.cache": {"volumeClaimTemplate": {"size": 1, "accessMode": "ReadOnlyMany"}}},
        'supported values: "ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"',
    ),
    "claims kept a little": (
        {"spec.model.cache": {"volumeClaimTemplate": {"size": 1, "whenDeleted": "Archive"}}},
        'supported values: "Retain", "Delete"',
    ),
    "node label with a blank": (
        {"spec.engine.nodeSelector": {"a": "b c"}},
        "nodeSelector.a in body should match",
    ),
    "taint without a key": (
        {"spec.engine.tolerations": [{"value": "b"}]},
        "without a key, which stands for all taints, operator must be Exists",
    ),
    "taint that exists with a value": (
        {"spec.engine.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "value is for the operator Equal",
    ),
    "taint borne for a time": (
        {"spec.engine.tolerations": [{"key": "a", "value": "b", "tolerationSeconds": 5}]},
        "tolerationSeconds is for the effect NoExecute",
    ),
    "node of no values": (
        {
            "spec.engine.affinity.nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}
                    ]
                }
            }
        },
        "In and NotIn need at least one of values, Gt and Lt exactly one, the others none",
    ),
    "term of nothing": (
        {"spec.engine.affinity.nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}},
        "matchExpressions: Required value",
    ),
    "preference of no weight": (
        {
            "spec.engine.affinity.podAntiAffinity": {
                PREFERRED: [{"weight": 0, "podAffinityTerm": {"topologyKey": HOST}}]
            }
        },
        "should be greater than or equal to 1",
    ),
    "pods in no place": (
        {"spec.engine.affinity.podAntiAffinity": {REQUIRED: [{"labelSelector": {}}]}},
        "topologyKey: Required value",
    ),
    "spread without a skew": (
        {
            "spec.engine.topologySpreadConstraints": [
                {"maxSkew": 0, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        "maxSkew in body should be greater than or equal to 1",
    ),
    "wishes for places": (
        {
            "spec.engine.topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": HOST,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "minDomains": 2,
                }
            ]
        },
        "minDomains is for whenUnsatisfiable: DoNotSchedule",
    ),
    "priority in capitals": (
        {"spec.engine.priorityClassName": "High"},
        "priorityClassName in body should match",
    ),
    "secret twice": (
        {"spec.engine.imagePullSecrets": [{"name": "a"}, {"name": "a"}]},
        "Duplicate value",
    ),
    "account by its full name": (
        {"spec.engine.serviceAccountName": "ns/name"},
        "serviceAccountName in body should match",
    ),
    "label of ours": (
        {"spec.engine.podTemplate": {"metadata": {"labels": {"tidegate.io/pool": "x"}}}},
        "are the operator's own, which finds the pods by them; use other keys",
    ),
    "annotation of ours": (
        {"spec.engine.podTemplate": {"metadata": {"annotations": {"tidegate.io/x": "y"}}}},
        "annotations tidegate.io/* are the operator's own",
    ),
    "template that is a list": (
        {"spec.engine.podTemplate": {"spec": []}},
        "podTemplate.spec in body must be of type object",
    ),
    "drain for days": ({"spec.engine.drainTimeout": "48h"}, "must be from 0s to 24h"),
    "order between tiers": (
        {"spec.betweenTiers": "Random"},
        'supported values: "Strict", "Weighted"',
    ),
    "mode of another kind": (
        {"spec.schedulingMode": "Off"},
        'supported values: "Tidegate", "Shadow", "FirstComeFirstServed"',
    ),
    "a router without a pod": ({"spec.router": {"replicas": 0}}, "greater than or equal to 1"),
    "a router with TLS of no Secret": ({"spec.router": {"tls": {}}}, "spec.router.tls.secretRef"),
    "service of another kind": (
        {"spec.service": {"type": "ExternalName"}},
        'supported values: "ClusterIP", "NodePort", "LoadBalancer"',
    ),
    "streams kept alive without a pause": (
        {"spec.service": {"streamKeepAlive": "100ms"}},
        "must be from 1s to 1h",
    ),
    "load balancer class without one": (
        {"spec.service": {"type": "ClusterIP", "loadBalancerClass": "a/b"}},
        "loadBalancerClass needs type: LoadBalancer",
    ),
}


def test_minimal_is_accepted(api: Api) -> None:
    api.create(MINIMAL, dry_run=True).ok()


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(api: Api, changes: dict[str, Any]) -> None:
    answer = api.create(changed(example("ServingPool", "pool"), changes), dry_run=True)
    answer.ok()
    assert answer.warnings == ()


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(api: Api, changes: dict[str, Any], said: str) -> None:
    answer = api.create(changed(example("ServingPool", "pool"), changes), dry_run=True)
    assert answer.status == 422
    assert said in answer.message


def test_a_pod_template_is_kept_as_it_is(api: Api) -> None:
    """Unknown fields, directives and nulls: what they mean is decided when it is merged."""
    spec = {
        "aFieldOfALaterKubernetes": {"b": [{"c": "1.50"}]},
        "securityContext": {"fsGroup": None},
        "volumes": [{"name": "shared-memory", "$patch": "delete"}],
    }
    pool = changed(example("ServingPool", "kept"), {"spec.engine.podTemplate": {"spec": spec}})
    api.apply(pool, "user").ok()
    assert api.read(pool)["spec"]["engine"]["podTemplate"] == {"spec": spec}


def spellings(flag: str) -> list[str]:
    """Every way in which vLLM's parser would take a flag."""
    if flag.endswith("*"):
        family = flag.removesuffix("*")
        return [
            f"{family}of-a-later-version",
            "--" + family[2:].replace("-", "_") + "size=2",
            family[:-1],
        ]
    if not flag.startswith("--"):
        return [flag, f"{flag}=2", f"{flag}2"]
    return [flag, f"{flag}=x", flag.replace("-", "_").replace("__", "--", 1), flag[:-1] + "=x"]


OWNED = [
    pytest.param(spelling, advice, id=spelling)
    for flags, advice in OWNED_FLAGS
    for flag in flags
    for spelling in spellings(flag)
]


@pytest.mark.parametrize(("argument", "advice"), OWNED)
def test_owned_flag_is_refused_and_the_field_named(api: Api, argument: str, advice: str) -> None:
    pool = changed(example("ServingPool", "pool"), {"spec.engine.args.2": argument})
    answer = api.create(pool, dry_run=True)
    assert answer.status == 422
    assert "spec.engine.args[2]" in answer.message
    assert f"cannot be set here: {advice}" in answer.message
