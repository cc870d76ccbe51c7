"""One object of each kind that uses most of its fields: for docs/api.md and for tests."""

from __future__ import annotations

from typing import Any

from tidegate_operator.api.common import API_VERSION

EXAMPLES: dict[str, dict[str, Any]] = {
    "TenantTier": {
        "apiVersion": API_VERSION,
        "kind": "TenantTier",
        "metadata": {"name": "t0"},
        "spec": {
            "priority": 1000,
            "weight": 4,
            "reservedPercent": 60,
            "maxPercent": 95,
            "slo": {
                "objectives": [
                    {
                        "metric": "TimeToFirstToken",
                        "target": "800ms",
                        "ratio": "99.5",
                        "window": "720h",
                    }
                ]
            },
            "promptLimit": {"maxTokens": 32768, "maxPrefillTime": "2s", "onExceed": "Reject"},
            "output": {"default": 512, "max": 4096},
            "rateLimits": [
                {
                    "name": "minute",
                    "endpoints": ["Chat", "Completions"],
                    "models": ["qwen3-8b"],
                    "requests": 600,
                    "tokens": 400000,
                    "per": "Minute",
                },
                {"name": "month", "tokens": 2000000000, "per": "Month"},
            ],
            "maxInFlight": 64,
            "fairness": {"unit": "EngineTime", "quantum": 100},
            "preemption": {
                "evictable": False,
                "recomputeBackoff": {"perQueuedRequest": "10ms", "max": "500ms"},
                "maxPerRequest": 3,
            },
            "queue": {"maxRequests": 2000, "maxBytes": 134217728, "maxWait": "30s"},
            "allowedNamespaces": {"matchLabels": {"tidegate.io/customers": "paid"}},
            "tenantOverrides": {"maxWeight": 10, "rateLimits": "Tighten"},
        },
    },
    "Tenant": {
        "apiVersion": API_VERSION,
        "kind": "Tenant",
        "metadata": {"name": "acme", "namespace": "customers"},
        "spec": {
            "tierRef": {"name": "t0"},
            "weight": 3,
            "apiKeys": [
                {
                    "name": "2026-01",
                    "sha256": "2e93cd89f9f2d14cb9a8eb5ee39e6bb8bb4f1bdeb3a12c8f3a0f6a8a2b1e7c4d",
                },
                {"name": "2026-07", "secretRef": {"name": "acme-keys", "key": "2026-07"}},
            ],
            "rateLimits": [{"name": "day", "tokens": 50000000, "per": "Day"}],
            "models": ["qwen3-8b"],
            "stop": "None",
        },
    },
    "ServingPool": {
        "apiVersion": API_VERSION,
        "kind": "ServingPool",
        "metadata": {"name": "chat", "namespace": "models"},
        "spec": {
            "model": {
                "name": "qwen3-8b",
                "task": "Generate",
                "source": {
                    "huggingFace": {
                        "repo": "Qwen/Qwen3-8B",
                        "revision": "main",
                        "tokenSecretRef": {"name": "hugging-face", "key": "token"},
                    }
                },
                "cache": {
                    "volumeClaimTemplate": {
                        "size": "200Gi",
                        "storageClassName": "fast",
                        "accessMode": "ReadWriteOnce",
                        "whenDeleted": "Delete",
                        "whenScaled": "Retain",
                    }
                },
                "maxModelLen": 32768,
            },
            "tiers": [
                {
                    "name": "t0",
                    "reservedPercent": 50,
                    "maxPercent": 90,
                    "slo": {"objectives": [{"metric": "TimeToFirstToken", "target": "500ms"}]},
                    "promptLimit": {"maxTokens": 16384},
                },
                {"name": "t3"},
            ],
            "tenants": {
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "tidegate.io/customers",
                            "operator": "In",
                            "values": ["paid", "free"],
                        }
                    ]
                }
            },
            "engine": {
                "image": "vllm/vllm-openai:v0.32.0",
                "parallelism": {"tensor": 2},
                "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}},
                "args": ["--max-num-seqs=128", "--enable-prefix-caching"],
                "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "WARNING"}],
                "startupTimeout": "20m",
                "drainTimeout": "90s",
                "plugin": "Enabled",
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
                "tolerations": [
                    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
                ],
                "affinity": {
                    "podAntiAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 50,
                                "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"},
                            }
                        ]
                    }
                },
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "ScheduleAnyway",
                    }
                ],
                "priorityClassName": "serving",
                "runtimeClassName": "nvidia",
                "imagePullSecrets": [{"name": "registry"}],
                "serviceAccountName": "model-reader",
                "podTemplate": {
                    "metadata": {"annotations": {"example.com/team": "inference"}},
                    "spec": {
                        "volumes": [{"name": "shared-memory", "emptyDir": {"sizeLimit": "16Gi"}}]
                    },
                },
            },
            "replicas": 2,
            "sidecar": {"resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}},
            "service": {
                "type": "LoadBalancer",
                "annotations": {"service.beta.kubernetes.io/aws-load-balancer-scheme": "internal"},
                "loadBalancerClass": "service.k8s.aws/nlb",
                "streamKeepAlive": "15s",
            },
            "kvPools": [
                {"name": "paid", "tiers": ["t0"], "percent": 70, "lendablePercent": 50},
                {"name": "free", "tiers": ["t3"], "percent": 10, "borrowLimitPercent": 20},
            ],
            "prefill": {"budgetPercent": 30, "chunkTokens": 2048, "longPromptTokens": 8192},
            "betweenTiers": "Weighted",
            "schedulingMode": "Tidegate",
            "autoscaling": {
                "minPerGroup": 1,
                "maxPerGroup": 4,
                "maxReplicas": 6,
                "signals": ["Alerts", "BurnRate", "QueueWait"],
                "scaleUp": {"window": "0s", "cooldown": "60s", "maxStep": 2},
                "scaleDown": {"window": "10m", "cooldown": "5m", "maxStep": 1},
            },
            "price": {"gpuHour": "2.50"},
            "observability": {
                "prometheus": "http://prometheus.monitoring:9090",
                "ruleLabels": {"release": "kube-prometheus-stack"},
            },
        },
    },
}
"""By kind."""
