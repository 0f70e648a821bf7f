// What a promotion did, as the API reports it.

import { api, read, type Schemas } from '../lib/api';
import { zone } from '../lib/format';
import { Load } from '../lib/load.svelte';

export type PromotionReport = Schemas['PromotionReport'];

/** reportOf loads the report of a promotion, with the days of the browser's zone. */
export const reportOf = (id: string): Load<PromotionReport> =>
  new Load(() => read(api.GET('/v1/promotions/{id}/report', { params: { path: { id }, query: { format: 'json', zone } } })));
