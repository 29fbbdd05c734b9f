// Three turns of one conversation, each planned first; a call that is cancelled; an error.
// Usage: node conversation.js ROUTER    with the router's gRPC target, e.g. 127.0.0.1:7420
// Exit status 1 if turn 2 or 3 did not pull, for then something is wrong with the deployment.
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

import { connect, errorInfo, statusName } from "./router.js";

const [target] = process.argv.slice(2);
if (!target) {
  console.error("usage: node conversation.js ROUTER    e.g. 127.0.0.1:7420");
  process.exit(2);
}
const router = connect(target);
const sessionId = `node-${randomUUID()}`;

/** Runs a turn and prints the answer as it comes. Returns its text and how the turn went. */
async function turn(messages) {
  const call = router.generate({
    sessionId,
    messages: { messages },
    sampling: { maxTokens: 96, temperature: 0 },
    extraJson: JSON.stringify({ min_tokens: 96 }), // what has no field of its own
  });
  let text = "";
  let usage;
  let result;
  for await (const message of call) {
    if (message.event === "plan") {
      console.log(`  plan    ${message.plan.decision} ${message.plan.reason}`);
      process.stdout.write("  answer  ");
    } else if (message.event === "chunk") {
      text += message.chunk.text;
      process.stdout.write(message.chunk.text);
    } else if (message.event === "usage") {
      usage = message.usage;
    } else if (message.event === "result") {
      result = message.result;
    }
  }
  console.log(`\n  usage   prompt ${usage.promptTokens}, generated ${usage.completionTokens}`);
  return { text, result };
}

/** Prints what the router would do with the next turn, and why. */
function explain(plan) {
  console.log(`  ${plan.decision} ${plan.reason}, session ${plan.sessionKey}`);
  for (const one of plan.candidates) {
    const verdict = one.rejectedReason ? `out: ${one.rejectedReason}` : `score ${one.score}`;
    console.log(`  candidate ${one.engineId} ${one.role} ${verdict}${one.home ? ", home" : ""}`);
  }
  for (const { decision, pulledTokens, computedTokens, time } of plan.estimates) {
    const milliseconds = Number(time.seconds) * 1e3 + time.nanos / 1e6;
    const what = `pulls ${pulledTokens}, computes ${computedTokens} tokens`;
    console.log(`  estimate ${decision} ${what}: ${milliseconds.toFixed(1)} ms`);
  }
}

/** The plan of the next turn, once the router has heard of the handle: a moment after the
 * turn that left it, sooner than a person answers. Gives up after five seconds. */
async function nextPlan() {
  const last = Date.now() + 5000;
  for (;;) {
    const plan = await router.planTurn({ tenant: "default", sessionId });
    if (plan.handleTokens !== "0" || Date.now() > last) return plan;
    await pause(50);
  }
}

async function conversation() {
  const messages = [];
  let pulled = 0n;
  // The opening is new each time: of a conversation that P has computed before, nothing is pulled.
  const questions = [`Hello, I am ${sessionId}`, "Go on", "And then?"];
  for (const [number, question] of questions.entries()) {
    if (number) {
      console.log(`plan of turn ${number + 1}`);
      explain(await nextPlan());
    }
    console.log(`turn ${number + 1}`);
    messages.push({ role: "user", content: question });
    const { text, result } = await turn(messages);
    messages.push({ role: "assistant", content: text });

    const outcome = result.pull?.outcome ?? "no prefill leg";
    const tokens = result.pull?.pulledTokens ?? "0";
    console.log(`  result  ${result.decision} ${result.reason} ${outcome}, ${tokens} tokens`);
    if (number && outcome !== "PULL_OUTCOME_PULLED") {
      console.error(`turn ${number + 1} did not pull: ${outcome} ${result.reason} ${result.denial}`);
      process.exitCode = 1;
    }
    pulled += BigInt(tokens);
  }
  console.log(`pulled ${pulled} tokens in all`);
}

/** Leaves in the middle of an answer: the router ends the request in the engine. */
async function leave() {
  const call = router.generate({
    messages: { messages: [{ role: "user", content: "Tell me everything" }] },
    sampling: { maxTokens: 3000 },
    extraJson: JSON.stringify({ min_tokens: 3000 }),
  });
  let chunks = 0;
  try {
    for await (const message of call) {
      if (message.event !== "chunk") continue;
      chunks += 1;
      call.cancel();
    }
    console.log("the answer ended before it was cancelled");
  } catch (error) {
    console.log(`cancelled after ${chunks} chunk(s): ${statusName(error)}`);
  }
}

/** What a failed call tells: a status for people, a reason for programs. */
async function fail() {
  const call = router.generate({
    model: "no-such-model",
    messages: { messages: [{ role: "user", content: "Hello" }] },
  });
  try {
    for await (const message of call) console.log(`unexpected: ${message.event}`);
  } catch (error) {
    const { reason, domain } = errorInfo(error);
    console.log(`error ${statusName(error)}, reason ${domain}/${reason}: ${error.details}`);
  }
}

try {
  await conversation();
  await leave();
  await fail();
} catch (error) {
  if (!statusName(error)) throw error;
  console.error(`${statusName(error)} ${errorInfo(error)?.reason ?? ""}: ${error.details}`);
  process.exitCode = 1;
} finally {
  router.close();
}
