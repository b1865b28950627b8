"""An async handler: each batch is sent to a service with many requests at a time.

The batch is done when the function returns, so it returns only after every response has come. Run it like
ten_lines.py.
"""

import asyncio

from leasehold import Batch, Consumer, UserRecord

consumer = Consumer(stream="orders", application="notify")
limit = asyncio.Semaphore(20)  # requests at a time, in the whole process


async def notify(record: UserRecord) -> None:
    async with limit:
        await asyncio.sleep(0.01)  # here: the request to your service
        print("notified about", record.sequence_number, flush=True)


@consumer.batch(max_records=200, max_wait="500ms")
async def notify_all(batch: Batch) -> None:
    async with asyncio.TaskGroup() as requests:
        for record in batch:
            requests.create_task(notify(record))


consumer.run()
