"""The addresses of the server and what answers each. Every error is one sentence as JSON."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from capsella.errors import CapsellaError
from capsella.explorer.answers import (
    answer_about,
    answer_changes,
    answer_drawings,
    answer_file,
    answer_sketch,
    explorer_page,
)
from capsella.explorer.guard import HEADERS, Guard
from capsella.explorer.subject import Subject
from capsella.explorer.uploads import MOST_BYTES

SENTENCES = {404: "There is nothing at this address.", 405: "This address is asked in another way."}
_MOST_NAME = 100  # characters of a file's name that are said


async def read_body(request: Request, most: int, what: str) -> bytes:
    """The whole body, held in memory alone.

    Raises:
        CapsellaError: it is larger than `most` bytes; it is not read any further then.
    """
    too_large = f"{what}: must be at most {most / 1e6:.0f} MB"
    if int(request.headers.get("content-length", "0")) > most:
        raise CapsellaError(too_large)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise CapsellaError(too_large)
        parts.append(part)
    return b"".join(parts)


class Application:
    """Answers about some runs. Networks are asked one at a time: they share the processor anyway."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subjects = subjects
        self.page, self.arrays = explorer_page(subjects)
        self._turn = asyncio.Lock()

    def routes(self) -> list[Route]:
        """What there is to ask."""
        run = "/api/runs/{run:int}"
        return [
            Route("/", self._show, methods=["GET"]),
            Route("/api/arrays", self._hold, methods=["GET"]),
            Route(run + "/images/{number:int}", self._image, methods=["GET"]),
            Route(run + "/files", self._file, methods=["POST"]),
            Route(run + "/sketches", self._sketch, methods=["POST"]),
            Route(run + "/changes", self._changes, methods=["POST"]),
            Route(run + "/drawings", self._drawings, methods=["POST"]),
        ]

    async def _answer(self, function: Callable[..., dict[str, Any]], *given: Any) -> JSONResponse:
        async with self._turn:
            answer = await run_in_threadpool(function, *given)
        return JSONResponse(answer, headers=HEADERS)

    def _subject(self, request: Request) -> Subject:
        number = request.path_params["run"]
        if number >= len(self.subjects):
            raise HTTPException(404)
        return self.subjects[number]

    async def _show(self, request: Request) -> HTMLResponse:
        return HTMLResponse(self.page, headers=HEADERS)

    async def _hold(self, request: Request) -> Response:
        return Response(self.arrays, media_type="application/octet-stream", headers=HEADERS)

    async def _image(self, request: Request) -> JSONResponse:
        subject = self._subject(request)

        def look(number: int) -> dict[str, Any]:
            return answer_about(subject, subject.image(number))

        return await self._answer(look, request.path_params["number"])

    async def _file(self, request: Request) -> JSONResponse:
        subject = self._subject(request)
        name = request.query_params.get("name", "")[-_MOST_NAME:] or "the file"
        return await self._answer(answer_file, subject, await read_body(request, MOST_BYTES, name), name)

    async def _sketch(self, request: Request) -> JSONResponse:
        subject = self._subject(request)
        return await self._answer(answer_sketch, subject, await read_body(request, MOST_BYTES, "drawing"))

    async def _changes(self, request: Request) -> JSONResponse:
        subject = self._subject(request)
        try:
            predicted = int(request.query_params.get("class", ""))
        except ValueError:
            raise ValueError("class: must be a whole number") from None
        return await self._answer(answer_changes, subject, await read_body(request, MOST_BYTES, "the image"), predicted)

    async def _drawings(self, request: Request) -> JSONResponse:
        subject = self._subject(request)
        body = await read_body(request, MOST_BYTES // 20, "the question")
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("the question must be JSON") from None
        return await self._answer(answer_drawings, subject, asked)


def _say(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def say(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status, headers=HEADERS)

    return say


async def _say_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    sentence = SENTENCES.get(status, "This request cannot be answered.")
    return JSONResponse({"error": sentence}, status, headers=HEADERS)


async def _say_nothing(request: Request, error: Exception) -> Response:
    sentence = "Something went wrong in the server. What it was stands in the window of capsella explore."
    return JSONResponse({"error": sentence}, 500, headers=HEADERS)


def make_application(subjects: Sequence[Subject], names: frozenset[str], password: str | None) -> ASGIApp:
    """The page and its answers behind a guard.

    Args:
        subjects: the runs.
        names: under which the server is reached, as `Guard` takes them.
        password: without which nothing is answered; None for whoever reaches the server.
    """
    handlers: dict[Any, Any] = {
        CapsellaError: _say(400),
        ValueError: _say(400),
        HTTPException: _say_http,
        Exception: _say_nothing,
    }
    inner = Starlette(routes=Application(subjects).routes(), exception_handlers=handlers)
    return Guard(inner, names, password)
