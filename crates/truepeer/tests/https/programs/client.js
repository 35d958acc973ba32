// An HTTP/1.1 client with Node's https. `client.js HOST PORT AUTHORITY` sends the requests that clients.rs lists.
const assert = require('assert');
const crypto = require('crypto');
const fs = require('fs');
const https = require('https');

const [host, port, authority] = process.argv.slice(2);
const agent = new https.Agent({ keepAlive: true, maxSockets: 1, ca: fs.readFileSync(authority) });
const sha256 = (data) => crypto.createHash('sha256').update(data).digest('hex');

function begin(method, path, headers = {}) {
  return https.request({ host, port, path, method, headers, agent });
}

function answer(request) {
  return new Promise((resolve, reject) => {
    request.on('error', reject);
    request.on('response', (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('end', () => resolve([response, Buffer.concat(pieces).toString()]));
      response.on('error', reject);
    });
  });
}

function ask(method, path, body, headers) {
  const request = begin(method, path, headers);
  const answered = answer(request);
  request.end(body);
  return answered;
}

async function plain() {
  let reused = 0;
  for (const size of [0, 1, 1000, 1000000]) {
    const request = begin('GET', `/${size}`);
    const answered = answer(request);
    request.end();
    const [, said] = await answered;
    reused += request.reusedSocket ? 1 : 0;
    assert.strictEqual(said, 'x'.repeat(size));
    const [head, nothing] = await ask('HEAD', `/${size}`);
    assert.deepStrictEqual([head.headers['content-length'], nothing], [String(size), '']);
  }
  assert(reused >= 3, `used again ${reused} times`);
  for (const status of [204, 304]) {
    const [response, said] = await ask('GET', `/${status}`);
    assert.deepStrictEqual([response.statusCode, said], [status, '']);
  }
}

async function trailers() {
  const [response, said] = await ask('GET', '/chunked', undefined, { TE: 'trailers' });
  assert.deepStrictEqual([said, response.trailers['x-sum']], ['onetwothree', '11']);
  const body = Buffer.from('some bytes '.repeat(30000));
  const request = begin('POST', '/digest', { Trailer: 'X-Sum' });
  const answered = answer(request);
  request.write(body);
  request.addTrailers({ 'X-Sum': '12' });
  request.end();
  const [summed, digest] = await answered;
  assert.deepStrictEqual([digest, summed.headers['x-sum-was']], [sha256(body), '12']);
  assert.strictEqual((await ask('PUT', '/digest', body))[1], sha256(body));
}

async function expectations() {
  const body = Buffer.alloc(100000, 'y');
  const headers = { Expect: '100-continue', 'Content-Length': body.length };
  const request = begin('POST', '/digest', headers);
  let continued = false;
  request.on('continue', () => { continued = true; request.end(body); });
  request.flushHeaders();
  assert.strictEqual((await answer(request))[1], sha256(body));
  assert(continued);
  const refused = begin('POST', '/refuse', headers);
  refused.on('continue', () => assert.fail('the origin refuses'));
  refused.flushHeaders();
  const [response] = await answer(refused);
  assert.strictEqual(response.statusCode, 422);
  refused.on('error', () => {});
  refused.destroy();
}

function upgrade() {
  return new Promise((resolve, reject) => {
    const request = begin('GET', '/echo', { Connection: 'Upgrade', Upgrade: 'echo' });
    request.on('error', reject);
    request.on('upgrade', (response, socket, head) => {
      const sent = Buffer.alloc(300000, 'z');
      let back = head.length;
      socket.on('data', (piece) => {
        back += piece.length;
        if (back === sent.length) socket.end();
      });
      socket.on('close', () => (back === sent.length ? resolve() : reject(new Error(`${back} bytes`))));
      socket.write(sent);
    });
    request.end();
  });
}

(async () => {
  await plain();
  await trailers();
  await expectations();
  await upgrade();
  console.log('all well');
  process.exit(0);
})().catch((error) => { console.log(error); process.exit(1); });
