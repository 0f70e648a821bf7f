// Checks the texts of the console, and writes the types of their values to src/lib/messages.d.ts: every message
// is there in every language with the same values, is used, and no page has a text that is not a message.
import { parse as parseMessage, TYPE } from '@formatjs/icu-messageformat-parser';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse as parseSource } from 'svelte/compiler';

const languages = ['en', 'ko']; // the first one is the server's
const groups = ['state', 'role', 'audit', 'event', 'attempt', 'part', 'kind', 'phase', 'request', 'refusal', 'sorry', 'end', 'upload', 'draw', 'source', 'encoding', 'again']; // of codes that named translates
const serverGroups = ['error', 'line', 'pause', 'answer', 'drift', 'trouble']; // what the server says in English itself
const codesIn = (file, pattern) => [...readFileSync(file, 'utf8').matchAll(pattern)].map(([, code]) => code);
const serverCodes = { error: codesIn('../docs/errors.md', /^\| `([A-Z_]+)` \| \d/gm), line: codesIn('../internal/campaign/targets.go', /^\tLine\w+ += "([A-Z_]+)"/gm), answer: codesIn('../internal/money/classify.go', /^\tCode\w+ += "([A-Z_]+)"/gm), drift: codesIn('../internal/books/balance.go', /^\tdrift\w+ += "([a-z.]+)"/gm), trouble: codesIn('../internal/obs/troubles.go', /^\tPart\w+ += "([a-z-]+)"/gm) };
const problems = [];

/** valuesOf maps the values of a message to their kinds. */
function valuesOf(nodes, found = {}) {
  for (const node of nodes) {
    switch (node.type) {
      case TYPE.argument: found[node.value] ??= 'text'; break;
      case TYPE.number: found[node.value] = 'number'; break;
      case TYPE.tag: found[node.value] = 'drawn'; valuesOf(node.children, found); break;
      case TYPE.select: case TYPE.plural:
        found[node.value] = node.type === TYPE.plural ? 'number' : 'text';
        for (const option of Object.values(node.options)) valuesOf(option.value, found);
    }
  }
  return found;
}

const messages = {}; // by language, the values of each key
for (const language of languages) {
  messages[language] = {};
  for (const [key, text] of Object.entries(JSON.parse(readFileSync(`messages/${language}.json`, 'utf8')))) {
    try {
      messages[language][key] = valuesOf(parseMessage(text));
    } catch (err) {
      problems.push(`messages/${language}.json: ${key} is no message: ${err.message}`);
    }
  }
}
const [own, ...others] = languages;
const serverSays = (key) => serverGroups.includes(key.split('.')[0]);
for (const language of others) {
  const keys = new Set([...Object.keys(messages[own]), ...Object.keys(messages[language]).filter((k) => !serverSays(k))]);
  for (const key of keys) {
    const [a, b] = [messages[own][key], messages[language][key]];
    const text = (values) => JSON.stringify(Object.entries(values).sort());
    if (!a || !b) problems.push(`messages/${a ? language : own}.json lacks ${key}`);
    else if (text(a) !== text(b)) problems.push(`messages/${language}.json: ${key} has the values ${text(b)}, and in ${own} ${text(a)}`);
  }
  for (const [group, codes] of Object.entries(serverCodes)) for (const code of codes) if (!messages[language][`${group}.${code}`]) problems.push(`messages/${language}.json lacks ${group}.${code}, a code of the server`);
}

// Of attributes, these are read by people; of components, all but the names that components are given for themselves.
const read = new Set(['title', 'aria-label', 'placeholder', 'alt']);
const unread = new Set(['state', 'group', 'page', 'key', 'class', 'id', 'type', 'icon', 'look', 'path', 'file']);
// Properties of objects that people read.
const readProperties = new Set(['title', 'button', 'label', 'hint', 'text', 'what', 'note', 'unit']);
const names = /^(Largesse|https:\/\/)$/; // the same in every language
const styles = /px |^\((prefers|pointer)/;
const letters = /\p{L}{2,}/u;
const words = /\p{L}{2,}[,;:]? \p{Ll}{2,}/u;
const used = new Set();

/** checkSource reports the texts of a file that are no messages. */
function checkSource(file, source) {
  const line = (node) => source.slice(0, node.start).split('\n').length;
  const literal = (node, text) => names.test(text.trim()) || styles.test(text) || problems.push(`${file}:${line(node)}: “${text.trim().slice(0, 60)}” is not a message: use t of lib/language.svelte.ts`);
  const texts = new Set(); // literals that become a text as they are

  /** shown collects the literals that an expression can become. */
  function shown(e) {
    if (!e) return;
    switch (e.type) {
      case 'Literal': if (typeof e.value === 'string') texts.add(e); break;
      case 'TemplateLiteral': e.quasis.forEach((q) => texts.add(q)); e.expressions.forEach(shown); break;
      case 'ConditionalExpression': shown(e.consequent); shown(e.alternate); break;
      case 'LogicalExpression': shown(e.right); if (e.operator !== '&&') shown(e.left); break;
      case 'BinaryExpression': if (e.operator === '+') { shown(e.left); shown(e.right); } break;
      case 'ArrayExpression': e.elements.forEach(shown);
    }
  }

  function walk(node, code) {
    if (!node || typeof node !== 'object') return;
    if (Array.isArray(node)) return node.forEach((n) => walk(n, code));
    switch (node.type) {
      case 'RegularElement': {
        const classes = node.attributes.find((a) => a.name === 'class')?.value;
        const isCode = code || /^(code|kbd|pre)$/.test(node.name) || JSON.stringify(classes ?? '').match(/[" ]code[" ]/);
        node.attributes.forEach((a) => attribute(a, read.has(a.name)));
        return walk(node.fragment, Boolean(isCode));
      }
      case 'Component':
        node.attributes.forEach((a) => attribute(a, !unread.has(a.name) && !(node.name === 'Icon')));
        if (node.name === 'Sentence') sentence(node);
        return walk(node.fragment, code);
      case 'Text': if (!code && letters.test(node.data)) literal(node, node.data); return;
      case 'ExpressionTag': if (!code) shown(node.expression); break;
      case 'Property': if (readProperties.has(node.key.name)) shown(node.value); break;
      case 'ImportDeclaration': case 'TSTypeAliasDeclaration': case 'TSInterfaceDeclaration': return;
      case 'Literal': case 'TemplateElement': {
        const text = node.type === 'Literal' ? node.value : node.value.cooked;
        if (typeof text !== 'string') break;
        if (messages[own][text]) used.add(text);
        else if (words.test(text) || (texts.has(node) && letters.test(text))) literal(node, text);
        return;
      }
    }
    for (const [name, child] of Object.entries(node)) if (!['typeAnnotation', 'metadata', 'loc', 'comments', 'leadingComments', 'trailingComments'].includes(name)) walk(child, code);
  }

  function attribute(node, isRead) {
    if (['class', 'style', 'd'].includes(node.name) || node.type === 'StyleDirective') return;
    if (node.type !== 'Attribute') return walk(node, false);
    for (const part of [node.value].flat()) {
      if (part?.type === 'Text') {
        if (messages[own][part.data]) used.add(part.data);
        if (isRead && letters.test(part.data)) literal(part, part.data);
      } else if (part?.type === 'ExpressionTag') {
        if (isRead) shown(part.expression);
        walk(part.expression, false);
      }
    }
  }

  /** sentence expects values and snippets for what the message of a Sentence has. */
  function sentence(node) {
    const by = (name) => node.attributes.find((a) => a.name === name)?.value;
    const key = [by('key')].flat()[0]?.data;
    const values = [by('values')].flat()[0]?.expression?.properties.map((p) => p.key.name) ?? [];
    const snippets = node.fragment.nodes.filter((n) => n.type === 'SnippetBlock').map((n) => n.expression.name);
    const wanted = Object.keys(messages[own][key] ?? {}).sort();
    if (key && wanted.join() !== [...values, ...snippets].sort().join()) problems.push(`${file}:${line(node)}: ${key} needs ${wanted}, and gets ${[...values, ...snippets]}`);
  }

  const { fragment, instance, module } = parseSource(file.endsWith('.svelte') ? source : `<script lang="ts">${source}</script>`, { modern: true });
  walk([module?.content, instance?.content, fragment], false);
}

for (const name of readdirSync('src', { recursive: true })) {
  const file = join('src', name);
  if (/(?<!\.d)\.(svelte|ts)$/.test(name)) checkSource(file, readFileSync(file, 'utf8'));
}
for (const key of Object.keys(messages[own])) {
  if (!used.has(key) && !groups.includes(key.split('.')[0])) problems.push(`messages/${own}.json: ${key} is not used`);
}

const kinds = { number: 'number', text: 'Value', drawn: 'Value' };
const type = (values) => (Object.keys(values).length ? `{ ${Object.entries(values).map(([name, kind]) => `${name}: ${kinds[kind]}`).join('; ')} }` : 'undefined');
writeFileSync('src/lib/messages.d.ts', [
  '// Written by messages.mjs: the values of each message.', 'export type Value = string | number;',
  `export type Group = ${groups.map((g) => `'${g}'`).join(' | ')};`,
  'export interface Messages {', ...Object.entries(messages[own]).map(([key, values]) => `  '${key}': ${type(values)};`), '}', '',
].join('\n'));
for (const problem of problems) console.error(problem);
if (problems.length) process.exit(1);
