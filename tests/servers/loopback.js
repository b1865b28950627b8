// Preloaded into kinesis-local, which listens on every address and has no option for it: each server of the
// process is kept on 127.0.0.1, whichever of Node's ways of calling `listen` is used.
'use strict';

const net = require('node:net');

const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function listenOnLoopback(...args) {
  if (typeof args[0] === 'object' && args[0] !== null) {
    return listen.call(this, { ...args[0], host: '127.0.0.1' }, ...args.slice(1));
  }
  const callback = args.find((arg) => typeof arg === 'function');
  return listen.call(this, { port: Number(args[0] ?? 0), host: '127.0.0.1' }, callback);
};
