// A file of targets that is still in the browser: how it is read, what of it would be accepted, and which of its lines
// somebody has corrected.

import { said, type Schemas } from '../lib/api';
import { digitsOf, plain } from '../lib/format';
import { t, translated } from '../lib/language.svelte';
import { csv, guarded } from '../lib/save';
import { upload } from '../lib/upload';

export type Check = Schemas['TargetsCheck'];
export type Line = Check['lines'][number];
type Result = Schemas['UploadResult'];
export type Column = keyof Check['columns'];

/** About is what a check has to know of the promotion. */
export interface About {
  type: 'POINT' | 'VOUCHER';
  currency?: string;
  amount?: number; // minor units of lines without one
  voucherCode?: string;
}

const types: Record<string, string> = {
  xlsx: 'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet', tsv: 'text/tab-separated-values', tab: 'text/tab-separated-values',
  ndjson: 'application/x-ndjson', jsonl: 'application/x-ndjson',
};

/** letters names a column as spreadsheets do: A is the first one. */
const letters = (at: number): string => (at < 26 ? '' : letters(Math.floor(at / 26) - 1)) + String.fromCharCode(65 + (at % 26));

/** columnsOf are the columns of a file by the names that a query takes: their own one, or their letters if it is not theirs alone. */
export function columnsOf(header: string[]): { name: string; label: string }[] {
  return header.map((name, at) => {
    const alone = name !== '' && header.filter((n) => n === name).length === 1;
    return { name: alone ? name : letters(at), label: name === '' ? letters(at) : alone ? name : `${name} (${letters(at)})` };
  });
}

export class TargetFile {
  columns = $state.raw<Partial<Record<Column, string>>>(); // as chosen; undefined: as the header suggests
  encoding = $state('');
  sheet = $state('');
  units = $state<'major' | 'minor'>('major'); // people write major ones
  found = $state.raw<Check>();
  fixes = $state<Record<number, string[]>>({}); // corrected cells by line
  #corrected = $state.raw<{ lines: number[]; check: Check }>(); // what becomes of them
  /** locked tells that a part may have arrived: sent in another way, it could pay somebody twice. */
  locked = $state(false);
  busy = $state('');
  share = $state(0); // of the file, sent
  error = $state<{ text: string; requestId?: string }>();
  #about: About;
  #sending: AbortController | undefined;

  constructor(
    readonly file: File,
    about: About,
  ) {
    this.#about = about;
  }

  get #type(): string {
    return types[/[^.]*$/.exec(this.file.name.toLowerCase())?.[0] ?? ''] ?? 'text/csv';
  }
  /** #name is that of the file, as the server takes it, with room for a note. */
  get #name(): string {
    return [...plain(this.file.name.replaceAll('\n', ' '))].slice(0, 180).join('');
  }
  get isWorkbook(): boolean {
    return this.#type === types.xlsx;
  }
  get isTable(): boolean {
    return this.#type !== types.ndjson;
  }
  /** hasUnits tells whether the currency has major and minor units to choose from. */
  get hasUnits(): boolean {
    return (digitsOf(this.#about.currency) ?? 0) > 0;
  }

  /** query says how the file is read, with columns by the names that address gives them. */
  #query(columns: Partial<Record<Column, string>> | undefined, address = (name: string) => name): Record<string, string> {
    const read = Object.entries(columns ?? {}).filter(([ours, theirs]) => theirs && (ours !== 'voucherCode' || this.#about.type === 'VOUCHER'));
    return {
      columns: read.map(([ours, theirs]) => `${ours}=${address(theirs)}`).join(','),
      encoding: this.isTable && !this.isWorkbook ? this.encoding : '', sheet: this.sheet, amounts: this.hasUnits ? this.units : '',
    };
  }
  #checkPath(query: Record<string, string>): string {
    const { type, currency, amount, voucherCode } = this.#about;
    return `v1/targets/check?${parameters({ ...query, type, currency, amount: amount === undefined ? '' : String(amount), voucherCode: type === 'VOUCHER' ? voucherCode : '' })}`;
  }

  /** check asks what would be accepted; nothing is created. It replaces a check that runs. */
  async check(about: About = this.#about): Promise<void> {
    this.#about = about;
    this.#sending?.abort();
    const sending = (this.#sending = new AbortController());
    this.error = undefined;
    this.share = 0;
    this.busy = t('upload.checking');
    try {
      const ask = () => upload<Check>(this.#checkPath(this.#query(this.columns)), this.file, this.#type, (n) => (this.share = n), sending.signal);
      let found = await ask();
      if (about.type === 'POINT' && !this.columns && found.columns.voucherCode && found.columns.targetId) {
        this.columns = found.columns; // without the codes, which points do not have
        found = await ask();
      }
      const people = found.columns.targetId;
      if (!this.columns && people && !found.columns.userId && !found.accepted && found.lines.some((l) => l.code === 'BAD_ID')) {
        this.columns = { ...found.columns, targetId: '', userId: people }; // customers whose IDs are no numbers
        found = await ask();
      }
      if (sending.signal.aborted) return;
      this.found = found;
      await this.#checkFixes(sending.signal);
    } catch (err) {
      if (!sending.signal.aborted) this.error = said(err);
    } finally {
      if (!sending.signal.aborted) this.busy = '';
    }
  }

  /** listed are the lines that were not accepted as they are in the file. */
  get listed(): Line[] {
    return this.found?.lines.filter((l) => !l.accepted) ?? [];
  }
  /** refused are those of them that were not corrected. */
  get refused(): Line[] {
    const corrected = new Set(this.correctedLines);
    return this.listed.filter((l) => !corrected.has(l.line));
  }
  get correctedLines(): number[] {
    return this.#corrected ? this.#corrected.lines.filter((_, i) => this.#faultAt(i) === undefined) : [];
  }
  #faultAt(index: number): Line | undefined {
    return this.#corrected?.check.lines.find((l) => !l.accepted && l.line === index + 2); // behind the header
  }
  /** fault says what is wrong with a line, as it is corrected so far. */
  fault(line: Line): string {
    const at = this.#corrected?.lines.indexOf(line.line) ?? -1;
    const now = (at >= 0 && this.#faultAt(at)) || line;
    return translated('line', now.code) ?? now.detail ?? '';
  }

  /** ready tells whether what is shown is what an upload would do: a check that failed leaves the result of the last one. */
  get ready(): boolean {
    return this.busy === '' && !this.error && this.accepted > 0;
  }
  /** alreadyPaid names the promotions that paid people of the file, with the corrected lines. */
  get alreadyPaid(): Check['alreadyPaid'] {
    const all = new Map<string, Check['alreadyPaid'][number]>();
    for (const p of [...(this.found?.alreadyPaid ?? []), ...(this.#corrected?.check.alreadyPaid ?? [])]) {
      all.set(p.promotionId, { ...p, count: p.count + (all.get(p.promotionId)?.count ?? 0) });
    }
    return [...all.values()];
  }
  get accepted(): number {
    return (this.found?.accepted ?? 0) + this.correctedLines.length;
  }
  get amount(): number {
    return (this.found?.amount ?? 0) + (this.#corrected?.check.amount ?? 0);
  }
  get leftOut(): number {
    return this.found ? this.found.rejected + this.found.conflicts - this.correctedLines.length : 0;
  }

  /** correct corrects the cells of a line. */
  async correct(line: number, cells: string[]): Promise<void> {
    this.fixes = { ...this.fixes, [line]: cells };
    this.#sending?.abort();
    const sending = (this.#sending = new AbortController());
    this.busy = t('upload.checking');
    try {
      await this.#checkFixes(sending.signal);
    } catch (err) {
      if (!sending.signal.aborted) this.error = said(err);
    } finally {
      if (!sending.signal.aborted) this.busy = '';
    }
  }
  /** #fixesFile has a line for each, so no cell has two, and columns by letters, whatever theirs are called. */
  #fixesFile(lines: number[]): Blob {
    const rows = lines.map((l) => this.fixes[l]!.map((cell) => cell.replaceAll(/[\r\n]+/g, ' ')));
    return new Blob([csv([(this.found?.header ?? []).map((_, at) => letters(at)), ...rows])]);
  }
  /** shownQuery reads the file as it is shown; without columns, an upload would refuse other names than ours. */
  get #shownQuery(): Record<string, string> {
    return this.#query(this.columns ?? this.found?.columns);
  }
  get #fixesQuery(): Record<string, string> {
    const columns = columnsOf(this.found?.header ?? []);
    return { ...this.#query(this.columns ?? this.found?.columns, (name) => letters(columns.findIndex((c) => c.name === name))), encoding: 'utf-8', sheet: '' };
  }
  async #checkFixes(signal: AbortSignal): Promise<void> {
    // Another choice of columns may accept a line as it is, and refuse others.
    const lines = this.listed.map((l) => l.line).filter((l) => this.fixes[l]?.some((cell) => cell.trim()));
    const corrected = lines.length
      ? { lines, check: await upload<Check>(this.#checkPath(this.#fixesQuery), this.#fixesFile(lines), 'text/csv', () => {}, signal) }
      : undefined;
    if (!signal.aborted) this.#corrected = corrected;
  }

  /** refusedFile has the refused lines that are shown, to be corrected elsewhere; the column of what is wrong is not chosen again. */
  refusedFile(): Blob {
    const rows = this.refused.map((l) => [...(this.fixes[l.line] ?? l.cells ?? []).map(guarded), translated('line', l.code) ?? l.detail ?? '']);
    return new Blob(['\ufeff', csv([[...(this.found?.header ?? []), t('campaign.whatIsWrong')], ...rows])], { type: 'text/csv' });
  }

  /** send adds the targets to a promotion, and returns how many, and their sum. Sent again, it adds only what did not arrive. */
  async send(promotion: string): Promise<{ accepted: number; amount: number }> {
    if (!this.ready) throw new Error(this.busy || t('upload.checking')); // somebody has just changed it
    this.locked = true;
    this.busy = t('upload.uploading');
    this.share = 0;
    try {
      const path = `v1/promotions/${encodeURIComponent(promotion)}/targets?`;
      const lines = this.correctedLines;
      const added = await upload<Result>(path + parameters({ ...this.#shownQuery, skip: lines.join(','), fileName: this.#name }), this.file, this.#type, (n) => (this.share = n));
      if (!lines.length) return added;
      try {
        // Behind the others: where a corrected line has the number of another one, that one counts.
        const more = await upload<Result>(path + parameters({ ...this.#fixesQuery, fileName: t('upload.correctedOf', { name: this.#name }) }), this.#fixesFile(lines), 'text/csv', () => {});
        return { accepted: added.accepted + more.accepted, amount: added.amount + more.amount };
      } catch (err) {
        throw new Error(`${t('upload.fixesMissing', { n: lines.length })} ${said(err).text}`);
      }
    } finally {
      this.busy = '';
    }
  }
}

const parameters = (query: Record<string, string | undefined>): string => new URLSearchParams(Object.entries(query).filter((e): e is [string, string] => !!e[1])).toString();
