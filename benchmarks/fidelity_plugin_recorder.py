"""The recorder around vLLM's scheduler with the plug-in: ``fidelity_recorder``, and what it notes.

`vllm serve --scheduler-cls fidelity_plugin_recorder.RecordingPlugin`, with this folder and the
repository's root on PYTHONPATH.
"""

from fidelity_recorder import Recording

from tidegate.vllm_plugin import TidegateScheduler


class RecordingPlugin(Recording, TidegateScheduler):
    """The plug-in's scheduler, noted."""
