import { svelte } from '@sveltejs/vite-plugin-svelte';
import tailwindcss from '@tailwindcss/vite';
// @ts-expect-error the types of Node are not installed
import { readdirSync, readFileSync } from 'node:fs';
import { defineConfig, type Plugin } from 'vite';

// Lists the packages whose code is in the build, with their licences: browsers get them with
// the code, and scripts/release puts them into the archives and the lists of parts. The
// styles of Tailwind CSS are in the build, but none of its modules.
const licences: Plugin = {
  name: 'licences',
  generateBundle(_, bundle) {
    const modules = Object.values(bundle).flatMap((part) => (part.type === 'chunk' ? part.moduleIds : []));
    const folders = new Set([...modules, '/node_modules/tailwindcss/'].flatMap((id) => id.match(/^(?!\0).*\/node_modules\/((@[^/]+\/)?[^/]+)/)?.[1] ?? []));
    const packages = [...folders].sort().map((folder) => {
      const { name, version, license } = JSON.parse(readFileSync(`node_modules/${folder}/package.json`, 'utf8'));
      const file = readdirSync(`node_modules/${folder}`).find((f: string) => /^licen[cs]e/i.test(f));
      return { name, version, license, text: readFileSync(`node_modules/${folder}/${file}`, 'utf8') };
    });
    this.emitFile({ type: 'asset', fileName: 'assets/licences.json', source: JSON.stringify(packages, null, 1) + '\n' });
  },
};

// File names without hashes keep the committed build small in a diff; the server
// sends an ETag with each file.
export default defineConfig({
  base: './',
  plugins: [svelte(), tailwindcss(), licences],
  server: { proxy: { '/v1': 'http://127.0.0.1:8080', '/readyz': 'http://127.0.0.1:8080' } },
  build: {
    outDir: 'dist',
    target: 'es2022',
    modulePreload: false,
    reportCompressedSize: false,
    rolldownOptions: {
      input: { index: 'index.html', drop: 'drop/index.html' },
      output: {
        entryFileNames: 'assets/[name].js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: 'assets/[name][extname]',
      },
    },
  },
});
