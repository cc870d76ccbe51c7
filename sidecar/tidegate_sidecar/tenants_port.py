"""What the tenants' ports of sidecar and router have in common: routes, errors, how an answer ends.

Each step of a request that fails raises an :class:`~tidegate_sidecar.errors.ApiError`, which
becomes the answer here, in one place. A client that goes away cancels the handler
(``handler_cancellation``).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from aiohttp.hdrs import TRANSFER_ENCODING
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.answers import Answer, ClientGone, WholeAnswer
from tidegate_sidecar.endpoints import ENDPOINTS, Endpoint
from tidegate_sidecar.error_answers import error_answer, other_method
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.framing import require_chunked
from tidegate_sidecar.models_route import MODELS_PATH
from tidegate_sidecar.passage import Passage

log = logging.getLogger("tidegate.sidecar")


class TenantsPort(ABC):
    """Handles every request of one port."""

    def __init__(self, client_stall_seconds: float) -> None:
        self._client_stall_seconds = client_stall_seconds

    @abstractmethod
    async def _serve(self, request: BaseRequest, endpoint: Endpoint, stage: Passage) -> Answer:
        """A POST to an endpoint."""

    @abstractmethod
    async def _models(self, request: BaseRequest, path: str, stage: Passage) -> Answer:
        """A GET of the models, or of one."""

    @abstractmethod
    def _end(self, stage: Passage, outcome: Outcome) -> None:
        """It has ended otherwise than by an answer."""

    @abstractmethod
    def _drains(self) -> bool:
        """Whether the next request of any client should go elsewhere."""

    def _closes(self, stage: Passage) -> bool:
        """Whether its connection is closed after it."""
        return stage.closes_connection or self._drains()

    def _error_headers(self, stage: Passage) -> Mapping[str, str]:
        """What an error's answer has besides the error's own."""
        return {}

    async def _answer(self, request: BaseRequest, stage: Passage) -> Answer:
        """One request; returns its answer, or raises when nobody is there to take it."""
        try:
            answer = await self._route(request, stage)
        except ApiError as error:
            stage.error = error
            self._end(stage, error.outcome)
            error.headers.update(self._error_headers(stage))
            answer = error_answer(error, stage.id)
        except ClientGone:
            self._end(stage, Outcome.CLIENT_CLOSED)
            raise ConnectionResetError from None
        except (asyncio.CancelledError, ConnectionError):
            self._end(stage, Outcome.CLIENT_CLOSED)
            raise
        except Exception:
            log.exception("request %s: unexpected error", stage.id)
            self._end(stage, Outcome.ENGINE_FAILED)
            if request.writer.output_size > 0:  # an answer has begun; another one cannot be sent
                raise ConnectionResetError from None
            stage.error = ApiError(Outcome.ENGINE_FAILED, status=500, code="internal_error")
            answer = error_answer(stage.error, stage.id)
        if isinstance(answer, WholeAnswer):
            answer.stall_seconds = self._client_stall_seconds
            if self._closes(stage):
                # Said in its head, so that the client's next request goes to another pod. The head
                # of a stream is long gone: who goes on using it is told by the next answer.
                answer.keep_alive = False
        return answer

    async def _route(self, request: BaseRequest, stage: Passage) -> Answer:
        if TRANSFER_ENCODING in request.headers:
            stage.closes_connection = True
            require_chunked(request)
        path = request.rel_url.raw_path
        endpoint = ENDPOINTS.get(path)
        if endpoint is not None:
            stage.endpoint = endpoint.kind
            if request.method == "POST":
                return await self._serve(request, endpoint, stage)
            return other_method(request.method, "POST, OPTIONS", stage.id)
        if path == MODELS_PATH or path.startswith(MODELS_PATH + "/"):
            if request.method in ("GET", "HEAD"):
                return await self._models(request, path, stage)
            return other_method(request.method, "GET, HEAD, OPTIONS", stage.id)
        raise ApiError(Outcome.MODEL_NOT_FOUND, "There is no such route.", code="unknown_url")
