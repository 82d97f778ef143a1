"""A web application with Django, in one file: it answers once an order is on the disks of a majority.

    VLSNLOG_URL=http://127.0.0.1:7701,http://127.0.0.1:7702 python django_app.py runserver --noreload 8080

All threads of a process share one client, which sends their appends of the same moment in one batch.
"""

import atexit
import json
import os
import sys
import threading
from typing import Any

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path

from vlsnlog import SyncClient, Trimmed, VlsnLogError, connect_sync

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], MIDDLEWARE=[f"{__name__}.told"])
_opening = threading.Lock()
_opened: list[SyncClient[Any]] = []


def orders() -> SyncClient[Any]:
    """Returns this process's client, opened at its first request: after the fork, if a server forks workers."""
    with _opening:
        if not _opened:
            client: SyncClient[Any] = connect_sync(os.environ["VLSNLOG_URL"], codec="json", timeout_s=5)
            _opened.append(client.__enter__())
            atexit.register(client.close)
        return _opened[0]


def told(get_response: Any) -> Any:
    """The middleware that answers errors of the log."""

    def answer(request: HttpRequest) -> Any:
        return get_response(request)

    def process_exception(request: HttpRequest, error: Exception) -> JsonResponse | None:
        if isinstance(error, ValueError):  # the body is no JSON
            return JsonResponse({"error": str(error)}, status=400)
        if isinstance(error, Trimmed):
            return JsonResponse({"error": str(error)}, status=410)
        if isinstance(error, VlsnLogError):
            # The client has tried until its deadline. If retry_safe, nothing was logged; else read first.
            said = {"error": str(error), "retry_safe": error.retry_safe}
            return JsonResponse(said, status=503 if error.retry_safe else 504)
        return None

    answer.process_exception = process_exception  # type: ignore[attr-defined]
    return answer


def take(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    return JsonResponse({"vlsn": orders().append(json.loads(request.body), key="order")}, status=201)


def show(request: HttpRequest, vlsn: int) -> HttpResponse:
    for entry in orders().read(max(vlsn, 1), vlsn, consistency="linearizable"):
        if entry.key == b"order":
            return JsonResponse(entry.json(), safe=False)
    return JsonResponse({"error": "no such order"}, status=404)


urlpatterns = [path("orders", take), path("orders/<int:vlsn>", show)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
