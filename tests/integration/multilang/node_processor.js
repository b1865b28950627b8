// A record processor on the KCL for Node. It appends what it handles to the file HANDLED, and checkpoints each batch.
'use strict';

const { appendFileSync } = require('node:fs');
const kcl = require('aws-kcl');

let shard;

function describe({ data, sequenceNumber }) {
  const text = Buffer.from(data, 'base64').toString();
  return JSON.stringify({ pid: process.pid, shard, number: sequenceNumber, data: text }) + '\n';
}

function checkpointAll({ checkpointer }, done) {
  checkpointer.checkpoint(() => done());
}

kcl({
  initialize(input, done) {
    shard = input.shardId;
    done();
  },
  processRecords({ records, checkpointer }, done) {
    if (records.length === 0) return done();
    appendFileSync(process.env.HANDLED, records.map(describe).join(''));
    checkpointer.checkpoint(records[records.length - 1].sequenceNumber, () => done());
  },
  leaseLost(_input, done) {
    done();
  },
  shardEnded: checkpointAll,
  shutdownRequested: checkpointAll,
}).run();
