// Uses a Kinesis server with the AWS SDK for JavaScript: creates, puts, splits, reads to the end, subscribes.
// Prints what it found as one line of JSON; the test compares it.
//
//     node kinesis_client.cjs http://127.0.0.1:PORT STREAM
'use strict';

const kinesis = require('@aws-sdk/client-kinesis');
const { NodeHttpHandler } = require('@smithy/node-http-handler');

const [endpoint, stream] = process.argv.slice(2);

const client = new kinesis.KinesisClient({
  endpoint,
  region: 'us-east-1',
  credentials: { accessKeyId: 'test', secretAccessKey: 'test' },
  maxAttempts: 1,
  // The SDK's default for Kinesis is HTTP/2, which is spoken with TLS or with prior knowledge.
  requestHandler: new NodeHttpHandler(),
});

const named = { StreamName: stream };

async function shards() {
  const answer = await client.send(new kinesis.ListShardsCommand(named));
  return answer.Shards;
}

async function put(text) {
  const record = { ...named, Data: Buffer.from(text, 'latin1'), PartitionKey: 'Schlüssel' };
  return client.send(new kinesis.PutRecordCommand(record));
}

async function untilActive() {
  await kinesis.waitUntilStreamExists({ client, maxWaitTime: 60, minDelay: 1 }, named);
}

/** Reads a closed shard to its end. */
async function readToEnd(shardId) {
  const start = { ...named, ShardId: shardId, ShardIteratorType: 'TRIM_HORIZON' };
  let { ShardIterator } = await client.send(new kinesis.GetShardIteratorCommand(start));
  const records = [];
  let children;
  while (ShardIterator) {
    const answer = await client.send(new kinesis.GetRecordsCommand({ ShardIterator }));
    records.push(...answer.Records);
    ShardIterator = answer.NextShardIterator;
    children = answer.ChildShards;
  }
  return { records: records.map(told), children: children.map((child) => child.ShardId) };
}

function told(record) {
  return {
    data: Buffer.from(record.Data).toString('latin1'),
    key: record.PartitionKey,
    number: record.SequenceNumber,
    arrivedMs: record.ApproximateArrivalTimestamp.getTime(),
  };
}

/** Subscribes to a closed shard until the server ends the subscription. */
async function subscribeToEnd(shardId) {
  const { StreamDescriptionSummary: summary } = await client.send(new kinesis.DescribeStreamSummaryCommand(named));
  const consumer = { StreamARN: summary.StreamARN, ConsumerName: 'javascript' };
  const { Consumer } = await client.send(new kinesis.RegisterStreamConsumerCommand(consumer));
  const request = {
    ConsumerARN: Consumer.ConsumerARN,
    ShardId: shardId,
    StartingPosition: { Type: 'TRIM_HORIZON' },
  };
  const { EventStream } = await client.send(new kinesis.SubscribeToShardCommand(request));
  const events = [];
  for await (const { SubscribeToShardEvent } of EventStream) {
    events.push(SubscribeToShardEvent);
  }
  const children = events.at(-1).ChildShards.map((child) => child.ShardId);
  return { records: events.flatMap((event) => event.Records.map(told)), children };
}

async function refusal() {
  try {
    await client.send(new kinesis.GetRecordsCommand({ ShardIterator: 'garbage' }));
  } catch (error) {
    return error.name;
  }
  return 'accepted';
}

async function main() {
  await client.send(new kinesis.CreateStreamCommand({ ...named, ShardCount: 1 }));
  await untilActive();
  const [parent] = await shards();
  const bytes = String.fromCharCode(...Array(256).keys());
  const numbers = [];
  for (const text of [bytes, 'second']) {
    numbers.push((await put(text)).SequenceNumber);
  }
  const split = { ...named, ShardToSplit: parent.ShardId, NewStartingHashKey: (2n ** 127n).toString() };
  await client.send(new kinesis.SplitShardCommand(split));
  await untilActive();
  return {
    parent: parent.ShardId,
    numbers,
    polled: await readToEnd(parent.ShardId),
    subscribed: await subscribeToEnd(parent.ShardId),
    refusal: await refusal(),
  };
}

main().then((found) => console.log(JSON.stringify(found)));
