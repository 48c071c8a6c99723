// The npm clients of OpenAI and Anthropic against the server. Run by test_client_sdks.py: node calls.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const url = process.argv[2];
const messages = [{ role: "user", content: "Hi" }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const names = [];
for await (const model of openai.models.list()) names.push(model.id);
assert(names.includes("spark"));
const whole = await openai.chat.completions.create({ model: "spark", messages });
assert.equal(whole.choices[0].message.content, "Hello there");
let text = "";
for await (const chunk of await openai.chat.completions.create({ model: "spark", messages, stream: true }))
  text += chunk.choices[0]?.delta?.content ?? "";
assert.equal(text, "Hello there");
const runner = openai.chat.completions.stream({ model: "spark", messages, tools });
const called = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
assert.deepEqual(JSON.parse(called.function.arguments), { city: "Paris" });
const vectors = await openai.embeddings.create({ model: "spark", input: ["one", "three"] });
assert.equal(vectors.data[0].embedding.length, 4);
const response = await openai.responses.create({ model: "spark", input: "Hi" });
assert.equal(response.output_text, "Hello there");
const kinds = [];
for await (const event of await openai.responses.create({ model: "spark", input: "Hi", stream: true }))
  kinds.push(event.type);
assert.equal(kinds.at(-1), "response.completed");
await assert.rejects(openai.chat.completions.create({ model: "nothing", messages }), OpenAI.NotFoundError);

const anthropic = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0 });
const base = { model: "spark", max_tokens: 50, messages };
assert.equal((await anthropic.messages.create(base)).content[0].text, "Hello there");
assert((await anthropic.messages.countTokens({ model: "spark", messages })).input_tokens > 0);
assert.equal(await anthropic.messages.stream(base).finalText(), "Hello there");
const use = await anthropic.messages
  .stream({ ...base, tools: [{ name: "get_weather", input_schema: parameters }] })
  .finalMessage();
assert.deepEqual(use.content[0].input, { city: "Paris" });
assert.equal(use.stop_reason, "tool_use");
await assert.rejects(anthropic.messages.create({ ...base, model: "nothing" }), Anthropic.NotFoundError);
console.log("every call passed, node", process.version);
