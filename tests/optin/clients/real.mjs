// Makers' clients of JavaScript and the flows of editors, against a server with a real model. Usage: real.mjs URL MODEL NAME
import assert from "node:assert"

const [url, model, which] = process.argv.slice(2)
const ask = "What is the capital of France? Answer in one sentence."
const expectParis = text => assert.match(text, /paris/i)

const flows = {
  async openai() {
    const OpenAI = (await import("openai")).default
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" })
    const messages = [{ role: "user", content: ask }]
    expectParis((await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 60 })).choices[0].message.content)
    let text = ""
    for await (const part of await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 60, stream: true }))
      text += part.choices[0]?.delta?.content ?? ""
    expectParis(text)
    expectParis((await client.responses.create({ model, input: ask, temperature: 0, max_output_tokens: 60 })).output_text)
    assert((await client.embeddings.create({ model, input: "Hello" })).data[0].embedding.length > 100)
    assert((await client.models.list()).data.some(one => one.id === model))
  },
  async anthropic() {
    const Anthropic = (await import("@anthropic-ai/sdk")).default
    const client = new Anthropic({ baseURL: url, apiKey: "unused" })
    const messages = [{ role: "user", content: ask }]
    expectParis((await client.messages.create({ model, messages, max_tokens: 60 })).content[0].text)
    const stream = client.messages.stream({ model, messages, max_tokens: 60 })
    assert((await stream.finalMessage()).content[0].text.length > 0)
    assert((await client.messages.countTokens({ model, messages })).input_tokens > 5)
    const tool = { name: "get_weather", input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }
    const cut = await client.messages.create({ model, messages, max_tokens: 4, tools: [tool], tool_choice: { type: "tool", name: "get_weather" } })
    assert.equal(cut.stop_reason, "max_tokens")
  },
  async ollama() {
    const { Ollama } = await import("ollama")
    const client = new Ollama({ host: url })
    expectParis((await client.chat({ model, messages: [{ role: "user", content: ask }], options: { temperature: 0, num_predict: 60 } })).message.content)
    let text = ""
    for await (const part of await client.generate({ model, prompt: ask, stream: true, options: { temperature: 0, num_predict: 60 } })) text += part.response
    assert(text.length > 0)
    assert((await client.embed({ model, input: ["Hello", "you"] })).embeddings.length === 2)
    assert((await client.show({ model })).model_info)
  },
  // AI SDK: its default is the responses protocol, with references to what was stored.
  async aisdk() {
    const { generateText, streamText, generateObject } = await import("ai")
    const { createOpenAI } = await import("@ai-sdk/openai")
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible")
    const { createAnthropic } = await import("@ai-sdk/anthropic")
    const { z } = await import("zod")
    const providers = [
      createOpenAI({ baseURL: `${url}/v1`, apiKey: "unused" })(model),
      createOpenAICompatible({ name: "local", baseURL: `${url}/v1` })(model),
      createAnthropic({ baseURL: `${url}/v1`, apiKey: "unused" })(model),
    ]
    for (const provider of providers) {
      const messages = []
      for (const said of [ask, "And of Spain?", "Which of the two is larger?"]) {
        messages.push({ role: "user", content: said })
        const answer = await generateText({ model: provider, messages, maxOutputTokens: 60, temperature: 0 })
        assert(answer.text.length > 0)
        messages.push(...answer.response.messages)
      }
      assert.equal(messages.length, 6)
      let text = ""
      for await (const part of streamText({ model: provider, prompt: ask, maxOutputTokens: 60 }).textStream) text += part
      assert(text.length > 0)
    }
    const made = await generateObject({ model: providers[0], schema: z.object({ name: z.string(), age: z.number() }), prompt: "Ada is 36.", maxOutputTokens: 80 })
    assert.equal(typeof made.object.age, "number")
  },
  // VS Code's Ollama provider: version, the list of /api/tags, /api/show for abilities, then /v1 with the listed name.
  async vscode() {
    assert((await (await fetch(`${url}/api/version`)).json()).version)
    const listed = (await (await fetch(`${url}/api/tags`)).json()).models
    const found = listed.find(one => one.model.startsWith(model))
    const shown = await (await fetch(`${url}/api/show`, { method: "POST", body: JSON.stringify({ model: found.model }), headers: { "content-type": "application/json" } })).json()
    const about = shown.model_info
    assert(about[`${about["general.architecture"]}.context_length`] > 0)
    assert(shown.capabilities.includes("completion"))
    const body = { model: found.model, messages: [{ role: "user", content: ask }], stream: true, temperature: 0, max_tokens: 60, stream_options: { include_usage: true } }
    const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } })
    assert.equal(answer.status, 200)
    const lines = (await answer.text()).split("\n").filter(line => line.startsWith("data: {")).map(line => JSON.parse(line.slice(6)))
    expectParis(lines.map(one => one.choices[0]?.delta?.content ?? "").join(""))
    assert(lines.at(-1).usage.total_tokens > 0)
  },
}
await flows[which]()
console.log(`>${which}`)
