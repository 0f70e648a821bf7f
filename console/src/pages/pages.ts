// The pages, the roles that may open them, and where the rail shows them.

import type { Component } from 'svelte';
import { t } from '../lib/language.svelte';
import type { Messages } from '../lib/messages';
import { session, type Role } from '../lib/session.svelte';
import { start } from '../lib/start.svelte';
import Approvals from './Approvals.svelte';
import Audit from './Audit.svelte';
import Books from './Books.svelte';
import Campaigns from './Campaigns.svelte';
import Coupons from './Coupons.svelte';
import DeadLetters from './DeadLetters.svelte';
import Instances from './Instances.svelte';
import Keys from './Keys.svelte';
import Missing from './Missing.svelte';
import Overview from './Overview.svelte';
import People from './People.svelte';
import Person from './Person.svelte';
import Promotion from './Promotion.svelte';
import PromotionNew from './PromotionNew.svelte';
import PromotionReport from './PromotionReport.svelte';
import Promotions from './Promotions.svelte';
import Settings from './Settings.svelte';
import Template from './Template.svelte';
import TemplateNew from './TemplateNew.svelte';
import TemplateReport from './TemplateReport.svelte';
import Unknown from './Unknown.svelte';
import Webhook from './Webhook.svelte';
import Webhooks from './Webhooks.svelte';

/** Title is a message without values. */
type Title = { [K in keyof Messages]: Messages[K] extends undefined ? K : never }[keyof Messages];

export interface PageInfo {
  title: string;
  rail: string; // the path of its entry in the rail
  roles: readonly Role[]; // who may open it, the least role first
  /** gets the parts of the address, if it declares them */
  component: Component<any>;
}

const admins: Role[] = ['admin'];
const operators: Role[] = ['operator', 'admin'];
const campaigners: Role[] = ['campaigner', ...operators];
const approvers: Role[] = ['approver', ...operators];
const readers: Role[] = ['viewer', 'approver', ...campaigners];
const staff: Role[] = ['issuer', ...readers];

interface Entry {
  path: string;
  title: Title;
  icon: string;
  opens: Role[];
  /** shown to these in the rail. Others who may open it find it with the palette, and by its address. */
  shown: Role[];
}

/** rail is by job: who has several sees several groups. */
export const rail: { title: Title; entries: Entry[] }[] = [
  { title: 'nav.campaigns', entries: [
    { path: '/campaigns', title: 'page.campaigns', icon: 'home', opens: readers, shown: campaigners },
    { path: '/promotions', title: 'page.promotions', icon: 'promotions', opens: readers, shown: readers },
    { path: '/coupons', title: 'page.coupons', icon: 'coupons', opens: staff, shown: staff },
    { path: '/approvals', title: 'page.approvals', icon: 'check', opens: readers, shown: approvers },
  ] },
  { title: 'nav.support', entries: [
    { path: '/people', title: 'page.people', icon: 'people', opens: staff, shown: staff },
  ] },
  { title: 'nav.operations', entries: [
    { path: '/overview', title: 'page.overview', icon: 'overview', opens: readers, shown: operators },
    { path: '/unknown', title: 'page.unknown', icon: 'question', opens: readers, shown: operators },
    { path: '/dead-letters', title: 'page.deadLetters', icon: 'letters', opens: readers, shown: operators },
    { path: '/instances', title: 'page.instances', icon: 'instances', opens: readers, shown: operators },
    { path: '/reconciliation', title: 'page.reconciliation', icon: 'books', opens: readers, shown: operators },
  ] },
  { title: 'nav.administration', entries: [
    { path: '/webhooks', title: 'page.webhooks', icon: 'webhooks', opens: readers, shown: operators },
    { path: '/keys', title: 'page.keys', icon: 'keys', opens: admins, shown: admins },
    { path: '/audit', title: 'page.audit', icon: 'audit', opens: readers, shown: operators },
    { path: '/settings', title: 'page.settings', icon: 'settings', opens: admins, shown: admins },
  ] },
];
const entries = rail.flatMap((group) => group.entries);

/** openable are the entries that the role may open. */
export const openable = (): Entry[] => entries.filter((e) => session.is(e.opens));

/** titleOf names the page of an entry. */
export const titleOf = (path: string): string => t(entries.find((e) => e.path === path)?.title ?? 'page.notFound');

const flat: Record<string, Component<any>> = {
  campaigns: Campaigns, overview: Overview, approvals: Approvals, unknown: Unknown, webhooks: Webhooks, promotions: Promotions, coupons: Coupons, people: People, 'dead-letters': DeadLetters,
  instances: Instances, reconciliation: Books, keys: Keys, audit: Audit, settings: Settings,
};

/** pageOf finds the page of an address. */
export function pageOf(parts: string[]): PageInfo {
  const [first = start.path.slice(1), second, third] = parts;
  const entry = entries.find((e) => e.path === '/' + first);
  const component = flat[first];
  const missing = { title: t('page.notFound'), rail: '', roles: staff, component: Missing };
  if (!entry || !component) return missing;
  const page = { title: t(entry.title), rail: entry.path, roles: entry.opens, component };
  if (!second) return page;
  const inside = (title: string, component: Component<any>, roles = entry.opens) => ({ ...page, title, component, roles });
  switch (first) {
    case 'promotions':
      if (third === 'report') return inside(t('report.title'), PromotionReport);
      return second === 'new' ? inside(t('promotion.create'), PromotionNew, campaigners) : inside(t('promotion.number', { id: second }), Promotion);
    case 'coupons':
      if (third === 'report') return inside(t('report.of', { name: second }), TemplateReport);
      return second === 'new' ? inside(t('template.create'), TemplateNew, campaigners) : inside(t('template.number', { id: second }), Template);
    case 'webhooks': return inside(t('webhook.receiver'), Webhook);
    case 'people': return inside(second, Person);
    case 'approvals': return page;
  }
  return missing;
}
