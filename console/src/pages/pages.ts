// The pages, and where the rail shows them.

import type { Component } from 'svelte';
import { t } from '../lib/language.svelte';
import type { Messages } from '../lib/messages';
import Approvals from './Approvals.svelte';
import Audit from './Audit.svelte';
import Books from './Books.svelte';
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
import Promotions from './Promotions.svelte';
import Settings from './Settings.svelte';
import Template from './Template.svelte';
import TemplateNew from './TemplateNew.svelte';
import Unknown from './Unknown.svelte';
import Webhook from './Webhook.svelte';
import Webhooks from './Webhooks.svelte';

/** Title is a message without values. */
type Title = { [K in keyof Messages]: Messages[K] extends undefined ? K : never }[keyof Messages];

export interface PageInfo {
  title: string;
  rail: string; // the path of its entry in the rail
  role?: 'operator' | 'admin'; // who may see it; absent: everybody
  /** gets the parts of the address, if it declares them */
  component: Component<any>;
}

export const rail: { path: string; title: Title; icon: string; role?: 'operator' | 'admin' }[] = [
  { path: '/overview', title: 'page.overview', icon: 'overview' },
  { path: '/promotions', title: 'page.promotions', icon: 'promotions' },
  { path: '/coupons', title: 'page.coupons', icon: 'coupons' },
  { path: '/approvals', title: 'page.approvals', icon: 'check' },
  { path: '/unknown', title: 'page.unknown', icon: 'question' },
  { path: '/people', title: 'page.people', icon: 'people' },
  { path: '/dead-letters', title: 'page.deadLetters', icon: 'letters' },
  { path: '/webhooks', title: 'page.webhooks', icon: 'webhooks' },
  { path: '/instances', title: 'page.instances', icon: 'instances' },
  { path: '/reconciliation', title: 'page.reconciliation', icon: 'books' },
  { path: '/keys', title: 'page.keys', icon: 'keys', role: 'admin' },
  { path: '/audit', title: 'page.audit', icon: 'audit' },
  { path: '/settings', title: 'page.settings', icon: 'settings', role: 'admin' },
];

const flat: Record<string, Component<any>> = {
  overview: Overview, approvals: Approvals, unknown: Unknown, webhooks: Webhooks, promotions: Promotions, coupons: Coupons, people: People, 'dead-letters': DeadLetters, instances: Instances,
  reconciliation: Books, keys: Keys, audit: Audit, settings: Settings,
};

/** pageOf finds the page of an address. */
export function pageOf(parts: string[]): PageInfo {
  const [first = 'overview', second] = parts;
  const entry = rail.find((r) => r.path === '/' + first);
  const component = flat[first];
  if (!entry || !component) return { title: t('page.notFound'), rail: '', component: Missing };
  if (!second) return { title: t(entry.title), rail: entry.path, role: entry.role, component };
  if (first === 'promotions' && second === 'new') return { title: t('promotion.create'), rail: entry.path, role: 'operator', component: PromotionNew };
  if (first === 'promotions') return { title: t('promotion.number', { id: second }), rail: entry.path, component: Promotion };
  if (first === 'coupons') return second === 'new' ? { title: t('template.create'), rail: entry.path, role: 'operator', component: TemplateNew } : { title: t('template.number', { id: second }), rail: entry.path, component: Template };
  if (first === 'webhooks') return { title: t('webhook.receiver'), rail: entry.path, component: Webhook };
  if (first === 'people') return { title: second, rail: entry.path, component: Person };
  return { title: t('page.notFound'), rail: '', component: Missing };
}
